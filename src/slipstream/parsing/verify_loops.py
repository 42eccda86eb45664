"""Finds code that verifies a draft one token at a time: a loop over drafted tokens that calls the target."""

from __future__ import annotations

import re

from slipstream.parsing.log_scan import Hit, hits

_LOOP = re.compile(r"^[ \t]*for\b[^\n]{0,80}\bin\b[^\n]{0,80}draft[^\n]{0,80}:[ \t]*(?:#[^\n]*)?$", re.IGNORECASE)
_TARGET_CALL = re.compile(
    r"\b(?:\w+\.)*(?:target|main_model|big_model|large_model|verifier)\w*(?:\.\w+)*\(", re.IGNORECASE
)
_BODY_LINES = 6  # of the loop's body that are looked at


def verify_loop(text: str) -> Hit | None:
    """The line of the target's call in such a loop; None if there is none."""
    for loop in hits(text, "for ", None):
        if _LOOP.match(loop.line):
            body = text.find("\n", loop.at) + 1
            if body and (call := _call_in(text, body)):
                return call
    return None


def _call_in(text: str, at: int) -> Hit | None:
    """The first line of the body that calls the target."""
    for _ in range(_BODY_LINES):
        end = text.find("\n", at)
        line = text[at : end if end >= 0 else len(text)][:500]
        if line.strip() and not line[0].isspace():  # the body has ended
            return None
        if _TARGET_CALL.search(line):
            return Hit(at, line.strip(), {})
        if end < 0:
            return None
        at = end + 1
    return None
