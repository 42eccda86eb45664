"""What has to hold after a case. Each check returns failures; none of them changes anything but the caches."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fuzz.bad_request import BadRequest
from fuzz.oracle import Answer, Text, judge
from fuzz.plan import Plan
from fuzz.request import Request
from fuzz.watched import WatchedDrafter
from slipstream.core.engine import Engine
from slipstream.errors import CapacityError, ContextFullError, SlipstreamError, UsageError


@dataclass(frozen=True)
class Failure:
    """`check` is the category, `detail` what was seen."""

    check: str
    detail: str


@dataclass(frozen=True)
class Judge:
    """What is needed to judge answers: `answer_of` is the oracle."""

    text: Text
    vocab: int
    context_length: int
    answer_of: Callable[[Request], Answer]
    capacity: float = math.inf  # tokens of the cache

    def failures(self, plan: Plan, refusals_allowed: bool = False) -> list[Failure]:
        """`refusals_allowed`: two engines share a model, and each may say that it does not do that."""
        consumer = plan.consumer
        if refusals_allowed and isinstance(consumer.refusal or consumer.error, SlipstreamError):
            return []
        found = self._impossible_tokens(plan)
        if isinstance(plan.request, BadRequest):
            return found + self._bad(plan, plan.request)
        if isinstance(consumer.error, CapacityError) and self._can_never_fit(plan.request):
            return found
        if consumer.refusal is not None or consumer.error is not None:
            return [*found, failed("good stream failed", consumer.refusal or consumer.error, plan.name)]
        if plan.request.verifier != "matching":
            return found + self._valid(plan, plan.request)
        assert plan.expected is not None
        return found + self._equal(plan, [plan.expected])

    def _can_never_fit(self, request: Request) -> bool:
        return min(len(request.prompt) + request.limits.max_tokens, self.context_length) > self.capacity

    def _impossible_tokens(self, plan: Plan) -> list[Failure]:
        for token in plan.consumer.ids:
            if type(token) is not int:
                return [Failure(f"token id of type {type(token).__name__} reached a consumer", plan.name)]
            if not 0 <= token < self.vocab:
                return [Failure(f"token id {token} reached a consumer", plan.name)]
        return []

    def _bad(self, plan: Plan, request: BadRequest) -> list[Failure]:
        consumer = plan.consumer
        if consumer.refusal is not None:
            right = UsageError if request.name != "prompt too long" else ContextFullError
            if isinstance(consumer.refusal, right):
                return []
            return [failed("bad request refused with another error than UsageError", consumer.refusal, plan.name)]
        if consumer.error is not None:
            return [failed("bad request accepted, then failed", consumer.error, plan.name)]
        if request.meanings is None:
            return []
        if not request.meanings:
            if consumer.was_cancelled:
                return []
            return [Failure("bad request answered that means nothing", f"{plan.name}: {consumer.ids}")]
        return self._equal(plan, [self.answer_of(meaning) for meaning in request.meanings])

    def _equal(self, plan: Plan, right: Sequence[Answer]) -> list[Failure]:
        """The answer is one of `right`, or a beginning of one where somebody cancelled it."""
        consumer = plan.consumer
        ids = [token for token in consumer.ids if token != -1]
        if consumer.was_cancelled and consumer.reason in (None, "cancelled"):
            if any(self._begins(answer, ids, consumer.tokens or [], consumer.text) for answer in right):
                return []
            return [Failure("wrong tokens before a cancel", _difference(plan, right[0]))]
        if not any(ids == list(answer.tokens[: len(ids)]) for answer in right):
            return [Failure("wrong tokens", _difference(plan, right[0]))]
        if not consumer.has_read_all:  # it ended by itself, and then the consumer left
            return []
        if not any(ids == list(answer.tokens) == consumer.tokens for answer in right):
            return [Failure("answer ends early or late", _difference(plan, right[0]))]
        if not any(consumer.text == answer.text for answer in right):
            return [Failure("wrong text", f"{plan.name}: {consumer.text!r}, expected {right[0].text!r}")]
        if not any(consumer.reason == answer.reason for answer in right):
            return [Failure("wrong finish reason", f"{plan.name}: {consumer.reason}, expected {right[0].reason}")]
        return []

    def _begins(self, answer: Answer, ids: list[int], tokens: list[int], text: str) -> bool:
        is_prefix = ids == list(answer.tokens[: len(ids)]) and tokens == list(answer.tokens[: len(tokens)])
        return is_prefix and self.text.decode(max(tokens, ids, key=len)).startswith(text)

    def _valid(self, plan: Plan, request: Request) -> list[Failure]:
        """With `rejection` the tokens are not known, but the answer ends where the limits say, with its text."""
        consumer, room = plan.consumer, self.context_length - len(request.prompt)
        ids = [token for token in consumer.ids if token != -1]
        early = [n for n in range(1, len(ids)) if judge(ids[:n], request.limits, self.text, room).reason]
        if early:
            return [Failure("rejection: answer goes on after its end", f"{plan.name}: {ids}, end at {early[0]}")]
        if consumer.was_cancelled:
            return []
        answer = judge(ids, request.limits, self.text, room) if ids else Answer((), "", None)
        if (consumer.text, consumer.reason) != (answer.text, answer.reason):
            seen = f"{consumer.text!r} {consumer.reason}, expected {answer.text!r} {answer.reason}"
            return [Failure("rejection: wrong end or text", f"{plan.name}: {seen}")]
        return []


def failed(check: str, error: BaseException | None, where: str) -> Failure:
    """A failure that is an exception, by its type, with the place it came from."""
    frames = traceback.extract_tb(error.__traceback__) if error else []
    places = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames[-4:]))
    return Failure(f"{check}: {type(error).__name__}", f"{where}: {error} ({places})")


def _difference(plan: Plan, answer: Answer) -> str:
    ids = plan.consumer.ids
    at = next((i for i, (a, b) in enumerate(zip(ids, answer.tokens, strict=False)) if a != b), None)
    at = min(len(ids), len(answer.tokens)) if at is None else at
    return f"{plan.name}: from token {at} on {ids[at:][:6]}, expected {list(answer.tokens[at:][:6])}"


def idle(engines: Iterable[Engine]) -> list[Failure]:
    """Nothing runs or waits in an engine whose consumers are all done."""
    return [
        Failure("engine not idle", f"{engine.num_active} active, {engine.num_waiting} waiting")
        for engine in engines
        if engine.num_active or engine.num_waiting
    ]


def policies_work(engines: Iterable[Engine]) -> list[Failure]:
    """A policy that fails hurts no stream, so nothing else would show it."""
    errors = [engine.stats.policy_error for engine in engines]
    return [Failure("policy failed", error) for error in errors if error]


def drafters_released(drafters: Iterable[WatchedDrafter]) -> list[Failure]:
    """A working drafter hears of the end of each stream that it heard of, once."""
    return [
        Failure("drafter not told of a stream's end", f"{d.name}: begun {dict(d.begun)}, ended {dict(d.ended)}")
        for d in drafters
        if d.begun != d.ended
    ]
