"""How much to draft: `auto` drafts as much as pays off, `fixed(k)` always k tokens. docs/policy.md explains `auto`.

Other packages add policies as entry points.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from slipstream.core.policy import Policy
from slipstream.errors import UsageError
from slipstream.plugins import also_installed, find_plugin
from slipstream.policy.auto import AutoPolicy
from slipstream.policy.fixed import FixedPolicy

__all__ = ["AutoPolicy", "FixedPolicy", "make_policy"]

_SPEC = re.compile(r"(?P<name>[\w-]+)(?:\((?P<text>[^()]*)\))?")
_NUMBER = re.compile("[0-9]{1,9}")
_OWN: dict[str, Callable[[int], Policy]] = {"auto": AutoPolicy, "fixed": FixedPolicy}


def make_policy(spec: str | int | Policy) -> Policy:
    """`auto`, `auto(8)` (the longest draft), `fixed(4)` or just `4`; a Policy is returned as it is.

    Any other name is that of an installed package's policy; its callable gets the text in brackets, if any.
    """
    if isinstance(spec, int):
        return FixedPolicy(spec)
    if not isinstance(spec, str):
        return spec
    if _NUMBER.fullmatch(spec):
        return FixedPolicy(int(spec))
    match = _SPEC.fullmatch(spec)
    name, text = (match["name"], match["text"] or "") if match else ("", "")
    if name in _OWN:
        if _NUMBER.fullmatch(text):
            return _OWN[name](int(text))
        if name == "auto" and not text:
            return AutoPolicy()
    elif match and (plugin := find_plugin("policy", name)):
        made: Policy = plugin.make(Policy, *filter(None, [text]))
        return made
    raise UsageError(f"unknown policy {spec!r}; expected auto, auto(N), fixed(N) or a number{also_installed('policy')}")
