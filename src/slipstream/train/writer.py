"""Runs scripts, many at the same time: a script goes on as soon as its text is there.

Two writers give the same text, since noise depends on seed and position alone. `EngineWriter` lets the engine run,
round by round. Where the model can generate several tokens by itself, `BulkWriter` hears of them every few steps only:
with many streams of a small model, it is the host that takes the time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Protocol, cast

from slipstream.core.engine import Engine
from slipstream.core.generation import Generation
from slipstream.core.protocols import ExtendingModel, ExtendRequest, KVSequence, ScoreRequest
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.core.turn import TURN
from slipstream.errors import NonFiniteLogitsError, SlipstreamError
from slipstream.train.scripts import Script, Wanted
from slipstream.train.shards import Text

Pulse = Callable[[int], None]  # called after each step with the tokens written so far; may raise to stop
BULK_STEPS = 16  # tokens at a time; an answer ends within them, so half of them are wasted once per answer


class Writer(Protocol):
    def start(self, number: int, wanted: Wanted) -> None:
        """Begins a piece of text for script `number`."""
        ...

    def step(self) -> dict[int, list[int]]:
        """Goes on with all of them. What has come to its end, by script."""
        ...

    def close(self) -> None:
        """Gives up what has not come to its end."""
        ...


def writer_for(engine: Engine) -> Writer:
    if engine.target.info.extends:
        return BulkWriter(cast(ExtendingModel, engine.target), engine.tokenizer.eos_ids)
    return EngineWriter(engine)


def run_scripts(writer: Writer, scripts: Iterator[Script], streams: int, pulse: Pulse) -> Generator[list[Text]]:
    """What each script made, in their order. At most `streams` of them run at the same time, and the next begins where
    one has ended: a long text holds up what is given after it, and no stream.
    """
    running: dict[int, Script] = {}
    made: dict[int, list[Text]] = {}
    num_written = num_given = 0

    def go_on(number: int, script: Script, written: list[int] | None) -> None:
        try:
            wanted = next(script) if written is None else script.send(written)
        except StopIteration as end:
            running.pop(number, None)
            made[number] = end.value
            return
        running[number] = script
        writer.start(number, wanted)

    left = enumerate(scripts)
    try:
        while True:
            while len(running) < streams and (following := next(left, None)) is not None:
                go_on(*following, None)
            while num_given in made:
                yield made.pop(num_given)
                num_given += 1
            if not running:
                return
            for number, written in writer.step().items():
                num_written += len(written)
                go_on(number, running[number], written)
            pulse(num_written)
    finally:
        writer.close()


class EngineWriter:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._running: dict[int, Generation] = {}

    def start(self, number: int, wanted: Wanted) -> None:
        sampling = Sampling(temperature=wanted.temperature, seed=wanted.seed)
        self._running[number] = self._engine.generate(list(wanted.prompt), sampling, Limits(wanted.max_tokens))

    def step(self) -> dict[int, list[int]]:
        self._engine.step()
        finished = {number: g for number, g in self._running.items() if g.stream.done}
        for number, generation in finished.items():
            if generation.stream.error:
                raise SlipstreamError(f"the target could not write: {generation.stream.error}")
            del self._running[number]
        return {number: generation.tokens for number, generation in finished.items()}

    def close(self) -> None:
        for generation in self._running.values():
            generation.cancel()
        self._running = {}


@dataclass(slots=True)
class _Piece:
    """A piece of text on its way."""

    wanted: Wanted
    sampling: Sampling
    sequence: KVSequence
    written: list[int] = field(default_factory=list)

    @property
    def last(self) -> int:
        return self.written[-1] if self.written else self.wanted.prompt[-1]


class BulkWriter:
    """The model's context must have room for `steps` tokens more than a text may have."""

    def __init__(self, model: ExtendingModel, end_tokens: frozenset[int], steps: int = BULK_STEPS) -> None:
        self._model = model
        self._end_tokens = end_tokens
        self._steps = steps
        self._new: list[tuple[int, Wanted]] = []
        self._running: dict[int, _Piece] = {}

    def start(self, number: int, wanted: Wanted) -> None:
        self._new.append((number, wanted))

    def step(self) -> dict[int, list[int]]:
        with TURN.taken():
            self._read_prompts()
            pieces = list(self._running.values())
            requests = [
                ExtendRequest(piece.sequence, [piece.last], self._steps, piece.sampling, len(piece.written))
                for piece in pieces
            ]
            for piece, extension in zip(pieces, self._model.extend(requests), strict=True):
                self._take(piece, extension.tokens)
            finished = {number: piece for number, piece in self._running.items() if self._is_over(piece)}
            for number, piece in finished.items():
                piece.sequence.close()
                del self._running[number]
        return {number: piece.written for number, piece in finished.items()}

    def close(self) -> None:
        with TURN.taken():
            for piece in self._running.values():
                piece.sequence.close()
        self._new, self._running = [], {}

    def _take(self, piece: _Piece, tokens: list[int]) -> None:
        if min(tokens) < 0:
            raise NonFiniteLogitsError(f"the target gave no usable logits: {self._model.diagnose()}")
        ends = (at + 1 for at, token in enumerate(tokens) if token in self._end_tokens)
        piece.written += tokens[: next(ends, len(tokens))]
        del piece.written[piece.wanted.max_tokens :]

    def _is_over(self, piece: _Piece) -> bool:
        return len(piece.written) >= piece.wanted.max_tokens or piece.last in self._end_tokens

    def _read_prompts(self) -> None:
        """All but the last token of each new prompt, as many rows at a time as the model takes."""
        waiting: list[tuple[KVSequence, list[int]]] = []
        for number, wanted in self._new:
            prompt = list(wanted.prompt)
            sequence = self._model.open(prompt, len(prompt) + wanted.max_tokens + self._steps)
            sampling = Sampling(temperature=wanted.temperature, seed=wanted.seed)
            self._running[number] = _Piece(wanted, sampling, sequence)
            waiting.append((sequence, prompt[sequence.length : -1]))
        self._new = []
        while waiting := [(sequence, rest) for sequence, rest in waiting if rest]:
            waiting = self._read_some(waiting)

    def _read_some(self, waiting: list[tuple[KVSequence, list[int]]]) -> list[tuple[KVSequence, list[int]]]:
        """One forward. What is left to read afterwards."""
        room, requests, left = self._model.info.max_rows, [], []
        for sequence, rest in waiting:
            now, later = rest[:room], rest[room:]
            room -= len(now)
            if now:
                requests.append(ScoreRequest(sequence, now))
            left.append((sequence, later))
        self._model.score(requests)
        for request in requests:
            request.sequence.commit()
        return left
