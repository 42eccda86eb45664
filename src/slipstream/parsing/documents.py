"""Reports in Markdown: which parts of them are the output of a program."""

from __future__ import annotations

import re

_HEADING = re.compile(r"(?m)^#{1,6} \S")
_FENCE = re.compile(r"(?m)^[ \t]*```(?P<language>\w*)[ \t]*$")
_OUTPUT = ("", "text", "txt", "log", "logs", "console", "output", "plaintext", "pytb", "traceback")
_MAX_LENGTH = 1_000_000  # a longer text is a log


def output_blocks(text: str) -> list[tuple[int, int]] | None:
    """Where a report quotes output, between lines of ```. None for a text that is no report: a log is output itself."""
    if len(text) > _MAX_LENGTH or "```" not in text or len(_HEADING.findall(text)) < 2:
        return None
    fences = list(_FENCE.finditer(text))
    pairs = zip(fences[::2], fences[1::2], strict=False)
    return [(first.end(), last.start()) for first, last in pairs if first["language"].lower() in _OUTPUT]
