"""check_text: a Python string may contain characters that no encoding has."""

from __future__ import annotations

from slipstream.errors import UsageError

_ESCAPED_BYTES = range(0xDC80, 0xDD00)  # how Python represents input bytes that are not UTF-8


def check_text(text: str, what: str = "The text") -> None:
    """Raises UsageError for lone surrogates: half a character, or a byte of the input that was not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code, place = ord(text[error.start]), f"after {error.start} characters"
        if code in _ESCAPED_BYTES:
            problem = f"has the byte 0x{code - 0xDC00:02x} {place}, which is not UTF-8"
        else:
            problem = f"has an incomplete character (\\u{code:x}) {place}"
        raise UsageError(f"{what} {problem}; expected text in UTF-8") from error
