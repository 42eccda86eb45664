"""How much to draft: `auto` drafts as much as pays off, `fixed(k)` always k tokens. docs/policy.md explains `auto`.

Other packages bring policies of their own, as entry points.
"""

from __future__ import annotations

import re

from slipstream.core.policy import Policy
from slipstream.errors import UsageError
from slipstream.plugins import also_installed, find_plugin
from slipstream.policy.auto import AutoPolicy
from slipstream.policy.fixed import FixedPolicy

__all__ = ["AutoPolicy", "FixedPolicy", "make_policy"]

_SPEC = re.compile(r"(?P<name>[\w-]+)(?:\((?P<text>[^()]*)\))?")


def make_policy(spec: str | int | Policy) -> Policy:
    """`auto`, `auto(8)` (the longest draft), `fixed(4)` or just `4`; a Policy is returned as it is.

    Any other name is that of an installed package's, whose callable is given the text in brackets, if any.
    """
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
    match = _SPEC.fullmatch(spec)
    if match and kind not in ("auto", "fixed") and (plugin := find_plugin("policy", match["name"])):
        made: Policy = plugin.make(Policy, *filter(None, [match["text"]]))
        return made
    raise UsageError(f"unknown policy {spec!r}; expected auto, auto(N), fixed(N) or a number{also_installed('policy')}")
