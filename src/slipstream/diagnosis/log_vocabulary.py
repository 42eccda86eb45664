"""Vocabulary sizes of draft and target that a text names, and that differ."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from slipstream.diagnosis.log_figures import NUMBER, number
from slipstream.findings import rule
from slipstream.parsing.log_scan import Hit, Located, hits

SIZES = rule(
    "log-vocab-sizes",
    "slows",
    "Draft and target have vocabularies of different sizes",
    "The log names {target:,.0f} tokens for the target and {draft:,.0f} for the draft. With another vocabulary a token "
    "id of the draft means something else in the target: engines refuse such a pair, or reject nearly all drafts.",
    "Use a draft of the target's family: slipstream pairs --target TARGET. What differs: slipstream doctor --target T "
    "--draft D.",
)
_NAMED = re.compile(
    r"(?i)\b(?P<who>target|main|draft|assistant)\b[^\n\d]{0,30}?vocab(?:ulary)?(?:[_ ]?size)?\W{1,6}"
    rf"(?P<size>{NUMBER})"
)
_PADDING = 1_024  # entries by which engines pad a vocabulary of the same tokens
_MAX_LINES = 1_000


def vocabulary_sizes_in(text: str) -> Iterator[Located]:
    """The draft's line, where its size and the target's differ by more than padding."""
    found: dict[str, tuple[Hit, float]] = {}
    for piece in ("vocab", "Vocab"):
        for hit in islice(hits(text, piece, _NAMED), _MAX_LINES):
            who = "draft" if hit.groups["who"].lower() in ("draft", "assistant") else "target"
            found.setdefault(who, (hit, number(hit.groups["size"])))
    if len(found) == 2 and abs(found["draft"][1] - found["target"][1]) > _PADDING:
        (draft, draft_size), (_, target_size) = found["draft"], found["target"]
        yield Located(draft, SIZES.finding(target=target_size, draft=draft_size))
