"""What clients get: chat and text completions, whole and in chunks, in the form of the OpenAI API."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from slipstream.core.logprobs import TokenLogprobs
from slipstream.core.stream import Token
from slipstream.server.tool_formats import ToolAnswer, ToolUse

TokenText = Callable[[int], bytes]  # the bytes of a token; special ones by their names


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every object of one answer begins with."""

    kind: str
    model: str
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def wrap(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        start = {"id": self.id, "object": self.kind, "created": self.created, "model": self.model}
        return start | {"choices": choices} | more


class AnswerFormat(Protocol):
    """How the choices of one endpoint are written."""

    def envelope(self, model: str, streams: bool) -> Envelope: ...

    def opening(self, index: int) -> dict[str, Any] | None:
        """The first part of a streamed choice, before its text."""
        ...

    def part(self, index: int, text: str, tokens: Sequence[Token]) -> dict[str, Any]:
        """New tokens and their text, which may be empty."""
        ...

    def sendable(self, index: int, text: str) -> str:
        """The text that may be sent now: the rest comes later, in a part or with the end."""
        ...

    def ending(self, index: int, reason: str) -> dict[str, Any]: ...

    def whole(self, index: int, text: str, tokens: Sequence[Token], reason: str) -> dict[str, Any]: ...


class HeldText:
    """Holds back the text of a choice from where a tool call may begin: anywhere, or `only_at_start`."""

    def __init__(self, opening: str, only_at_start: bool = False) -> None:
        self._opening = opening
        self._only_at_start = only_at_start
        self._passes_all = False  # no call can begin any more
        self._held = ""

    def push(self, text: str) -> str:
        """What can be released now."""
        if self._passes_all:
            return text
        self._held += text
        if self._only_at_start:
            start = self._held.lstrip()[: len(self._opening)]
            self._passes_all = not self._opening.startswith(start)
            at = len(self._held) if self._passes_all else 0
        else:
            at = self._held.find(self._opening)
        if at < 0:
            sizes = range(min(len(self._opening) - 1, len(self._held)), 0, -1)
            overlap = next((size for size in sizes if self._held.endswith(self._opening[:size])), 0)
            at = len(self._held) - overlap
        released, self._held = self._held[:at], self._held[at:]
        return released

    def rest(self) -> str:
        return self._held


@dataclass(slots=True)
class ChatFormat:
    token_bytes: TokenText
    has_logprobs: bool = False
    tools: ToolUse | None = None
    _held: dict[int, HeldText] = field(default_factory=dict)  # by choice, with tools

    def envelope(self, model: str, streams: bool) -> Envelope:
        return Envelope(
            "chat.completion.chunk" if streams else "chat.completion", model, f"chatcmpl-{uuid.uuid4().hex}"
        )

    def opening(self, index: int) -> dict[str, Any] | None:
        return self._delta(index, {"role": "assistant", "content": ""})

    def sendable(self, index: int, text: str) -> str:
        if self.tools is None:
            return text
        form = self.tools.format
        return self._held.setdefault(index, HeldText(form.opening, form.is_whole_answer)).push(text)

    def part(self, index: int, text: str, tokens: Sequence[Token]) -> dict[str, Any]:
        return self._delta(index, {"content": text}, tokens)

    def ending(self, index: int, reason: str) -> dict[str, Any]:
        """Tool calls are sent whole, with the end: half a call is of no use to anybody."""
        if self.tools is None or index not in self._held:
            return self._delta(index, {}) | {"finish_reason": reason}
        answer = self.tools.read(self._held[index].rest())
        delta: dict[str, Any] = {"content": answer.content} if answer.content else {}
        if answer.calls:
            delta["tool_calls"] = [{"index": i} | call for i, call in enumerate(_calls(answer))]
        return self._delta(index, delta) | {"finish_reason": _tool_reason(answer, reason)}

    def whole(self, index: int, text: str, tokens: Sequence[Token], reason: str) -> dict[str, Any]:
        answer = self.tools.read(text) if self.tools else ToolAnswer(text)
        message: dict[str, Any] = {"role": "assistant", "content": answer.content, "refusal": None}
        if answer.calls:
            message |= {"content": answer.content or None, "tool_calls": _calls(answer)}
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(tokens),
            "finish_reason": _tool_reason(answer, reason),
        }

    def _delta(self, index: int, delta: dict[str, Any], tokens: Sequence[Token] = ()) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": self._logprobs(tokens), "finish_reason": None}

    def _logprobs(self, tokens: Sequence[Token]) -> dict[str, Any] | None:
        if not self.has_logprobs or not tokens:
            return None
        return {"content": [self._entry(t.id, t.logprobs) for t in tokens if t.logprobs], "refusal": None}

    def _entry(self, token: int, logprobs: TokenLogprobs) -> dict[str, Any]:
        top = [self._spelled(other, logprob) for other, logprob in logprobs.top]
        return self._spelled(token, logprobs.logprob) | {"top_logprobs": top}

    def _spelled(self, token: int, logprob: float) -> dict[str, Any]:
        spelled = self.token_bytes(token)
        return {"token": spelled.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(spelled)}


def _calls(answer: ToolAnswer) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call_{uuid.uuid4().hex[:24]}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in answer.calls
    ]


def _tool_reason(answer: ToolAnswer, reason: str) -> str:
    return "tool_calls" if answer.calls and reason == "stop" else reason


@dataclass(slots=True)
class CompletionFormat:
    token_bytes: TokenText
    has_logprobs: bool = False
    echoes: Sequence[str] = ()  # the prompt of each choice, to be repeated before its answer; empty: no echo
    _offsets: dict[int, int] = field(default_factory=dict)  # characters of each choice so far

    def envelope(self, model: str, streams: bool) -> Envelope:
        return Envelope("text_completion", model, f"cmpl-{uuid.uuid4().hex}")

    def opening(self, index: int) -> dict[str, Any] | None:
        return self._choice(index, self._echo(index)) if self.echoes else None

    def sendable(self, index: int, text: str) -> str:
        return text

    def part(self, index: int, text: str, tokens: Sequence[Token]) -> dict[str, Any]:
        return self._choice(index, text, self._logprobs(index, tokens))

    def ending(self, index: int, reason: str) -> dict[str, Any]:
        return self._choice(index, "") | {"finish_reason": reason}

    def whole(self, index: int, text: str, tokens: Sequence[Token], reason: str) -> dict[str, Any]:
        echo = self._echo(index)
        return self._choice(index, echo + text, self._logprobs(index, tokens)) | {"finish_reason": reason}

    def _echo(self, index: int) -> str:
        echo = self.echoes[index] if self.echoes else ""
        self._offsets[index] = len(echo)
        return echo

    def _choice(self, index: int, text: str, logprobs: dict[str, Any] | None = None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": None}

    def _logprobs(self, index: int, tokens: Sequence[Token]) -> dict[str, Any] | None:
        if not self.has_logprobs:
            return None
        found: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        at = self._offsets.get(index, 0)
        for token in tokens:
            if token.logprobs:
                found["tokens"].append(self._spelled(token.id))
                found["token_logprobs"].append(token.logprobs.logprob)
                found["top_logprobs"].append({self._spelled(other): value for other, value in token.logprobs.top})
                found["text_offset"].append(at)
            at += len(token.text)
        self._offsets[index] = at
        return found

    def _spelled(self, token: int) -> str:
        return self.token_bytes(token).decode("utf-8", "replace")


def token_details(tokens: Iterable[Token]) -> dict[str, Any]:
    """Who drafted each token, for streams that ask for it."""
    return {
        "tokens": [
            {
                "id": token.id,
                "text": token.text,
                "drafter": token.source.drafter if token.source else None,
                "chance": token.source.chance if token.source else None,
            }
            for token in tokens
        ]
    }
