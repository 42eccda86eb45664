"""The text of a log as its program wrote it: what other programs made of it is undone."""

from __future__ import annotations

import re
from collections import Counter

# A calm level, and the words before it. The loggers of vLLM, uvicorn and Ollama are no relays.
_RELAYED = re.compile(
    r"(?m)^[^\n]{0,120}?(?<!\w)(?:INFO|DEBUG|WARN(?:ING)?|info|debug|warn(?:ing)?)\b"
    r"(?!: {4}| \d\d-\d\d \d\d:| source=)(?: ?[\]):|-]+ ?)?"
)
_LINE = re.compile(r"(?m)^[^\n]*\S")
_RELAYED_SHARE = 0.9  # of the lines
_SAMPLE = 200_000  # characters at the beginning of a log that show whether it is relayed
_DIGITS = re.compile(r"\d+")

# What editors, chats and web pages write instead of plain characters.
_TYPOGRAPHY = (
    *(("\u00a0", " "), ("\u202f", " "), ("\u2007", " "), ("\u200b", ""), ("\ufeff", "")),
    *(("\u2018", "'"), ("\u2019", "'"), ("\u201c", '"'), ("\u201d", '"')),
)
_HTML = (
    *(("&#39;", "'"), ("&#x27;", "'"), ("&apos;", "'"), ("&quot;", '"'), ("&#34;", '"')),
    *(("&nbsp;", " "), ("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")),
)
_HTML_QUOTES = tuple(code for code, plain in _HTML if plain in "'\"")  # logs have the others in requests too


def plain_text(text: str) -> str:
    """With plain quotes and spaces, and without HTML codes where quotes are written so. Keeps the lines."""
    for typed, plain in () if text.isascii() else _TYPOGRAPHY:
        text = text.replace(typed, plain)
    for code, plain in _HTML if any(code in text for code in _HTML_QUOTES) else ():
        text = text.replace(code, plain)
    return text


def without_relays_level(text: str) -> str:
    """A text with blanks for what a program that relays it writes before nearly all lines: its level is not theirs."""
    sample = text[:_SAMPLE]
    heads = Counter(_DIGITS.sub("0", head) for head in _RELAYED.findall(sample))
    head, count = next(iter(heads.most_common(1)), ("", 0))
    if count < 2 or count < _RELAYED_SHARE * len(_LINE.findall(sample)):
        return text
    every = re.compile("(?m)^" + re.escape(head).replace("0", r"\d+"))
    return every.sub(lambda found: " " * len(found[0]), text)
