"""Finished conversations of a file, as texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from slipstream.errors import UsageError
from slipstream.models.text.chat_template import Message
from slipstream.train.chat_form import ChatForm
from slipstream.train.shards import Text

_EXPECTED = '{"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]} in each line'


def read_transcripts(path: Path, form: ChatForm) -> list[Text]:
    """One text for each line. Raises UsageError for a file or a line that can't be used."""
    if not form.has_template:
        raise UsageError("--transcripts needs a target with a chat template; this one has none")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} can't be read: {error}") from error
    texts = [_text(line, f"{path}, line {number}", form) for number, line in enumerate(lines, 1) if line.strip()]
    if not texts:
        raise UsageError(f"{path} has no conversation; expected {_EXPECTED}")
    return texts


def _text(line: str, where: str, form: ChatForm) -> Text:
    messages = _messages(line, where)
    while messages and messages[-1]["role"] != "assistant":
        messages.pop()
    if len(messages) < 2 or messages[-2]["role"] != "user":
        raise UsageError(f"{where}: no answer to a user's message; expected {_EXPECTED}")
    *asked, answer = messages
    prompt = form.prompt(asked)
    whole = form.tokenizer.chat_ids(messages, add_generation_prompt=False)
    if whole[: len(prompt)] != prompt:  # a template that treats earlier answers differently
        whole = [*prompt, *form.tokenizer.encode(answer["content"])]
    rest = whole[len(prompt) :]
    ends = [at for at, token in enumerate(rest) if token in form.tokenizer.eos_ids]
    return form.annotated(asked, rest[: ends[0] + 1] if ends else rest, "transcript")


def _messages(line: str, where: str) -> list[Message]:
    try:
        record: Any = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{where}: not valid JSON ({error}); expected {_EXPECTED}") from error
    messages = record.get("messages") if isinstance(record, dict) else None
    if not isinstance(messages, list) or not all(_is_message(m) for m in messages):
        raise UsageError(f"{where}: expected {_EXPECTED}")
    return [{"role": m["role"], "content": m["content"]} for m in messages]


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)
