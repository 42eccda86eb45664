"""The prompts of a benchmark: the project's own set, or a file in one of the formats people have.

What a file may hold:
- `{"turns": [...]}` with `id` and `kind`, or `question_id` and `category`: this project's own format, Spec-Bench,
  MT-bench. A conversation, run turn by turn.
- `{"messages": [...]}`, or the batch form `{"body": {"messages": [...]}}`: messages as the OpenAI API has them. The
  last user message is the turn, what stands before it is the opening, an answer after it is left out.
- `{"task_id": "HumanEval/0", "prompt": "def ..."}`: HumanEval. An instruction with the code.
- `{"prompt": "..."}`: one turn.
- plain text: `.txt`, `.md`, and what begins with neither `{` nor `[`. Split at lines of `---`; without such a line,
  each line that is not empty is a prompt.

All but text may be JSON lines, a JSON array or a single object. Keys that are not named here are ignored.
`system` (text), `opening` (messages) and `raw` (true or false) may stand beside `turns` or `prompt`.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from slipstream.errors import UsageError
from slipstream.measurement.workload import Message, Prompt
from slipstream.reading import MAX_DATA_BYTES, read_given

_ROLES = ("system", "user", "assistant")
_ID_KEYS = ("id", "question_id", "task_id", "custom_id")
_KIND_KEYS = ("kind", "category")
_TEXT_SUFFIXES = (".txt", ".md")
_JSON_SUFFIXES = (".json", ".jsonl", ".ndjson")
_SEPARATOR = "---"
_SHAPES = '"turns" (a list of user turns), "messages" (a list of role and content) or "prompt" (text)'
_JSON_WORDS = {dict: "an object", list: "a list", type(None): "null"}


def own_prompts() -> list[Prompt]:
    """The prompts that come with Slipstream, in the order of their file: 8 kinds, several of each."""
    source = files("slipstream.measurement").joinpath("prompts.jsonl")
    return _parse(source.read_text(encoding="utf-8"), Path(source.name))


def read_prompts(path: Path) -> list[Prompt]:
    """The prompts of a file, its format told by its content.

    An id that comes twice gets a number (`x`, `x#2`); a prompt without one is named by its line (`line-7`).
    Raises UsageError when the file can't be read, holds no prompt, or holds one that is none of the formats.
    """
    return _parse(_read_text(path), path)


class _BadPromptError(Exception):
    """What is wrong with one prompt; the reader adds the file and the line."""


def _parse(text: str, path: Path) -> list[Prompt]:
    """Every prompt of a file's text, ids made distinct."""
    body = text.lstrip()
    if not body:
        raise UsageError(f"{path} is empty, expected prompts: {_SHAPES} as JSON lines, or plain text")
    suffix = path.suffix.lower()
    if suffix in _TEXT_SUFFIXES or (body[0] not in "[{" and suffix not in _JSON_SUFFIXES):
        prompts = [Prompt(f"line-{line}", "text", (turn,)) for line, turn in _text_prompts(text)]
    else:
        records = _array_records(text, path) if body[0] == "[" else _line_records(text, path)
        prompts = [_from_record(record, line, path) for line, record in records]
    if not prompts:
        raise UsageError(f"{path} has no prompts; expected at least one")
    return _with_distinct_ids(prompts)


def _with_distinct_ids(prompts: list[Prompt]) -> list[Prompt]:
    seen: dict[str, int] = {}
    taken = {prompt.id for prompt in prompts}
    distinct = []
    for prompt in prompts:
        number = seen.get(prompt.id, 0) + 1
        if number > 1:
            while (new_id := f"{prompt.id}#{number}") in taken:
                number += 1
            taken.add(new_id)
            distinct.append(replace(prompt, id=new_id))
        else:
            distinct.append(prompt)
        seen[prompt.id] = number
    return distinct


# From bytes to records, each with the line it begins in


def _read_text(path: Path) -> str:
    """The file as text with `\\n` line ends: UTF-8 with or without a mark, or UTF-16 with one."""
    try:
        data = read_given(path, MAX_DATA_BYTES)
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror or error}") from error
    is_utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = data.decode("utf-16" if is_utf16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}, line {line}: not UTF-8 text") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _text_prompts(text: str) -> Iterator[tuple[int, str]]:
    lines = text.split("\n")
    if not any(line.strip() == _SEPARATOR for line in lines):
        yield from ((number, line.strip()) for number, line in enumerate(lines, 1) if line.strip())
        return
    block: list[tuple[int, str]] = []  # from its first line that is not empty
    for number, line in enumerate([*lines, _SEPARATOR], 1):
        if line.strip() == _SEPARATOR:
            if block:
                yield block[0][0], "\n".join(line for _, line in block).rstrip()
            block = []
        elif block or line.strip():
            block.append((number, line))


def _line_records(text: str, path: Path) -> Iterator[tuple[int, Any]]:
    """One object a line, or one object over all lines."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if len(lines) > 1 and lines[0][1].rstrip()[-1] != "}" and isinstance(whole := _loads(text), dict):
        yield lines[0][0], whole
        return
    for number, line in lines:
        record = _loads(line)
        if isinstance(record, ValueError):
            reason = f"{record.msg}, column {record.colno}" if isinstance(record, json.JSONDecodeError) else record
            raise UsageError(
                f"{path}, line {number}: not valid JSON ({reason}); expected one object per line: {_SHAPES}"
            )
        yield number, record


def _array_records(text: str, path: Path) -> Iterator[tuple[int, Any]]:
    """The items of an array, which is checked as a whole first."""
    whole = _loads(text)
    if isinstance(whole, ValueError):
        line = whole.lineno if isinstance(whole, json.JSONDecodeError) else 1
        reason = whole.msg if isinstance(whole, json.JSONDecodeError) else whole
        raise UsageError(f"{path}, line {line}: not valid JSON ({reason}); expected an array of objects: {_SHAPES}")
    decoder = json.JSONDecoder()
    position, line = text.index("[") + 1, text.count("\n", 0, text.index("[")) + 1
    start = position
    for _ in whole:
        while text[position] in " \t\n,":
            position += 1
        line += text.count("\n", start, position)
        start = position
        item, position = decoder.raw_decode(text, position)
        yield line, item


def _loads(text: str) -> Any:
    """The value of a JSON text, or the ValueError that says why there is none."""
    try:
        return json.loads(text)
    except ValueError as error:
        return error
    except RecursionError:
        return ValueError("nested too deeply")


# From a record to a prompt


def _from_record(record: Any, line: int, path: Path) -> Prompt:
    try:
        return _prompt(record, line)
    except _BadPromptError as problem:
        raise UsageError(f"{path}, line {line}: {problem}") from problem


def _prompt(record: Any, line: int) -> Prompt:
    if not isinstance(record, dict):
        raise _BadPromptError(f"got {_shown(record)}, expected an object with {_SHAPES}")
    body = record.get("body")
    source = body if isinstance(body, dict) and "messages" in body else record
    prompt_id = _label(record, _ID_KEYS, f"line-{line}")
    if "turns" in source:
        prompt = Prompt(prompt_id, "chat", _turns(source["turns"]))
    elif "messages" in source:
        prompt = _last_turn(prompt_id, _messages(source["messages"], "messages"))
    elif "prompt" in source:
        prompt = _single(prompt_id, source)
    else:
        keys = ", ".join(map(str, record)) or "none"
        raise _BadPromptError(f"got an object with the keys {keys}, expected one of {_SHAPES}")
    prompt = replace(prompt, kind=_label(record, _KIND_KEYS, prompt.kind))
    return _with_extras(prompt, source)


def _single(prompt_id: str, record: dict[str, Any]) -> Prompt:
    text = _text(record["prompt"], "prompt")
    if not isinstance(record.get("task_id"), str):
        return Prompt(prompt_id, "chat", (text,))
    code = text.strip("\n")
    return Prompt(prompt_id, "code", (f"Complete the following Python function.\n\n```python\n{code}\n```",))


def _last_turn(prompt_id: str, messages: tuple[Message, ...]) -> Prompt:
    """A given conversation up to its last user message; an answer to that is for the model to write."""
    last = max((i for i, message in enumerate(messages) if message.role == "user"), default=None)
    if last is None:
        raise _BadPromptError("messages has no user message; expected at least one")
    return Prompt(prompt_id, "chat", (messages[last].content,), messages[:last])


def _with_extras(prompt: Prompt, record: dict[str, Any]) -> Prompt:
    """Adds what `system`, `opening` and `raw` of a record say."""
    opening = prompt.opening
    if record.get("opening"):
        opening = (*_messages(record["opening"], "opening"), *opening)
    if record.get("system"):
        opening = (Message("system", _text(record["system"], "system")), *opening)
    raw = record.get("raw", prompt.raw)
    if not isinstance(raw, bool):
        raise _BadPromptError(f"raw is {_shown(raw)}, expected true or false")
    if raw and (opening or len(prompt.turns) > 1):
        raise _BadPromptError("a raw prompt is a single text to continue; it can't have more turns or earlier messages")
    return replace(prompt, opening=opening, raw=raw)


def _turns(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise _BadPromptError(f"turns is {_shown(value)}, expected a list of one text or more")
    return tuple(_text(turn, f"turn {number}") for number, turn in enumerate(value, 1))


def _messages(value: Any, name: str) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise _BadPromptError(f"{name} is {_shown(value)}, expected a list of objects with role and content")
    return tuple(_message(message, f"message {number} of {name}") for number, message in enumerate(value, 1))


def _message(value: Any, name: str) -> Message:
    if not isinstance(value, dict) or "role" not in value:
        raise _BadPromptError(f"{name} is {_shown(value)}, expected an object with role and content")
    role = "system" if value["role"] == "developer" else value["role"]
    if role not in _ROLES:
        raise _BadPromptError(f"{name} has the role {_shown(role)}, expected one of {', '.join(_ROLES)}")
    content = value.get("content")
    if isinstance(content, list):
        content = "\n".join(_text_part(part, name) for part in content)
    return Message(role, _text(content, name, may_be_empty=role != "user"))


def _text_part(part: Any, name: str) -> str:
    if isinstance(part, dict) and part.get("type") in ("text", "input_text") and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, dict) else part
    raise _BadPromptError(f"{name} has a part of type {_shown(kind)}, only text parts are supported")


def _text(value: Any, name: str, may_be_empty: bool = False) -> str:
    if not isinstance(value, str) or not (may_be_empty or value.strip()):
        raise _BadPromptError(f"{name} is {_shown(value)}, expected text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _BadPromptError(
            f"{name} has an incomplete character (\\u{ord(value[error.start]):x}), expected text"
        ) from error
    return value


def _label(record: dict[str, Any], keys: tuple[str, ...], default: str) -> str:
    """The first of these keys that holds a word or a number."""
    for key in keys:
        value = record.get(key)
        if isinstance(value, int | str) and not isinstance(value, bool) and str(value).strip():
            return str(value).strip()
    return default


def _shown(value: Any) -> str:
    """A JSON value in a few words, for an error message."""
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else value[:37] + "...") if value.strip() else "empty text"
    if isinstance(value, list) and not value:
        return "an empty list"
    return _JSON_WORDS.get(type(value), str(value)[:40])
