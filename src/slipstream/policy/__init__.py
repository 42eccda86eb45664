"""How much to draft: `auto` drafts what pays, `fixed(k)` does as it is told. docs/policy.md is the text to it."""

from __future__ import annotations

from slipstream.core.policy import Policy
from slipstream.errors import UsageError
from slipstream.policy.auto import AutoPolicy
from slipstream.policy.fixed import FixedPolicy

__all__ = ["AutoPolicy", "FixedPolicy", "make_policy"]


def make_policy(spec: str | int | Policy) -> Policy:
    """`auto`, `auto(8)` (the longest draft), `fixed(4)` or just `4`; a Policy is returned as it is."""
    if isinstance(spec, int):
        return FixedPolicy(spec)
    if not isinstance(spec, str):
        return spec
    kind, _, argument = spec.partition("(")
    number = argument.removesuffix(")")
    if kind == "auto" and (not argument or number.isdigit()):
        return AutoPolicy(int(number)) if number else AutoPolicy()
    if kind == "fixed" and number.isdigit():
        return FixedPolicy(int(number))
    if spec.isdigit():
        return FixedPolicy(int(spec))
    raise UsageError(f"unknown policy {spec!r}; expected auto, auto(N), fixed(N) or a number")
