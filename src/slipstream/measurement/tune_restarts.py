"""Tuning an engine that is set up once, at its start: every candidate costs a start.

Successive halving as in `tune`: all candidates get a prompt or a few, the better half more, and so on. Plain decoding
runs all the time beside the candidate, and the two answer each prompt one after the other, in random order. Where two
engines don't fit in memory, they take turns. Nothing begins that is not expected to end within the time budget.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field

from slipstream.core.generator import Generator
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.errors import EngineError, EngineStartError
from slipstream.measurement.ratio import ratio
from slipstream.measurement.tune import OFF, Progress, Score, TuneCandidate, TuneResult, fastest, ranked, share_of
from slipstream.measurement.workload import Prompt

Open = Callable[[TuneCandidate, float], AbstractContextManager[Generator]]  # the seconds that its start may take
_FIRST_SHARE = 0.6  # of the time, at most, for the first look at all candidates: the rest compares the better ones
_WARM_UP_TEXT = "Once upon a time"
_WARM_UP_TOKENS = 8


class PlainDecodingError(EngineError):
    """Plain decoding failed: there is nothing to compare with."""


@dataclass(slots=True)
class _Costs:
    """The most seconds that each step has taken so far: what the next one is expected to take."""

    start_s: float = 0.0  # with the first answer, which is slow
    stop_s: float = 0.0
    answers: dict[str, float] = field(default_factory=dict)  # by prompt, since prompts differ in length

    def pair_s(self, prompt: Prompt) -> float:
        """The answers of a candidate and of plain decoding; of a new prompt, what the longest ones took."""
        return 2 * self.answers.get(prompt.id, max(self.answers.values(), default=0.0))

    def mean_pair_s(self) -> float:
        return 2 * statistics.fmean(self.answers.values())

    def turn_s(self, prompts: Sequence[Prompt], num_starts: int) -> float:
        """Of one candidate: starts, answers and stops, with the last stop of plain decoding."""
        return num_starts * (self.start_s + self.stop_s) + sum(map(self.pair_s, prompts)) + self.stop_s


class RestartTuner:
    def __init__(
        self,
        open_generator: Open,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        limits: Limits,
        budget_s: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._open = open_generator
        self._sampling = sampling
        self._limits = limits
        self._budget_s = budget_s
        self._order = random.Random(sampling.seed)
        self._prompts = self._order.sample(list(prompts), len(prompts))
        self._clock = clock
        self._started = 0.0
        self._costs = _Costs()
        self._plain: Generator | None = None  # None where only one engine runs at a time
        self._two_fit: bool | None = None  # two engines at the same time; None: not tried
        self._num_asked = 0
        self.failures: dict[str, str] = {}  # candidates that did not start, or died, and what was said
        self.unmeasured: list[str] = []  # candidates for which there was no time

    def run(self, candidates: Sequence[TuneCandidate], progress: Progress) -> TuneResult:
        """Ends within the budget, starts and stops included, if no step takes longer than such a step did before.

        Ctrl-C ends it at once with the best so far, if anything was measured. A candidate whose engine fails is out;
        the search goes on. Where plain decoding fails, the search ends with what was measured. Raises EngineError where
        nothing was.
        """
        self._started = self._clock()
        scores = [Score(candidate) for candidate in _mixed(candidates)]
        complete, failure = True, None
        try:
            with ExitStack() as plain:
                self._run_rungs(scores, plain, progress)
        except KeyboardInterrupt:
            if not any(score.ratios for score in scores):
                raise
            complete = False
        except Exception as error:
            if not any(score.ratios for score in scores):
                raise
            complete, failure = False, error
        measured = [score for score in scores if score.ratios]
        if not measured:
            raise EngineError(self._why_nothing())
        self.unmeasured = [s.candidate.label for s in scores if not s.ratios and s.candidate.label not in self.failures]
        return TuneResult(ranked(measured), [], self._clock() - self._started, complete, failure)

    def _run_rungs(self, scores: list[Score], plain: ExitStack, progress: Progress) -> None:
        """Halves the candidates until one is left, which gets the rest of the time."""
        progress(self._share(), "plain decoding")
        self._start_plain(plain)
        alive, rung = scores, 0
        while alive:
            until = self._budget_s * (_FIRST_SHARE if rung == 0 else 1.0)
            batch = self._next_prompts(self._num_prompts(len(alive)))
            if not self._fits(batch[:1], self._budget_s):
                return
            for number, score in enumerate(alive):
                if number and not self._fits(batch[:1], until):
                    break
                progress(self._share(), f"rung {rung + 1}, {len(alive)} left: {score.candidate.label}")
                self._measure(score, batch, plain, rung)
            rung += 1
            alive = _next_rung(scores, alive, rung)

    def _why_nothing(self) -> str:
        said = "; ".join(f"{label}: {why.splitlines()[0]}" for label, why in self.failures.items())
        needed_s = self._clock() - self._started + self._costs.turn_s(self._prompts[:1], self._num_starts)
        too_short = f"One takes about {needed_s:.0f} s here, and the budget is {self._budget_s:.0f} s: add --seconds"
        return f"no candidate was measured, so nothing is chosen. {said or too_short}"

    def _num_prompts(self, num_alive: int) -> int:
        """For each candidate of a rung, so that all rungs that follow get as much time."""
        rungs_left = math.ceil(math.log2(num_alive)) + 1
        turn_s = ratio(self._left_s(self._budget_s), rungs_left * num_alive)
        fitting = ratio(turn_s - self._costs.turn_s((), self._num_starts), self._costs.mean_pair_s())
        return min(max(int(fitting), 1), len(self._prompts))

    def _next_prompts(self, count: int) -> list[Prompt]:
        """Each prompt once, then again."""
        first, self._num_asked = self._num_asked, self._num_asked + count
        return [self._prompts[i % len(self._prompts)] for i in range(first, first + count)]

    # -- one candidate ------------------------------------------------------------------------------------------------

    def _measure(self, score: Score, batch: Sequence[Prompt], plain: ExitStack, rung: int) -> None:
        try:
            self._take_turn(score, batch, plain)
        except PlainDecodingError:
            raise
        except EngineError as error:
            self.failures[score.candidate.label] = str(error)
            score.dropped_after = rung

    def _take_turn(self, score: Score, batch: Sequence[Prompt], plain: ExitStack) -> None:
        try:
            self._compare(score, batch)
            if self._plain:
                self._two_fit = True
        except EngineStartError:
            if not self._plain or self._two_fit:
                raise
            self._plain = None  # perhaps the two don't fit in memory: from now on they take turns
            plain.close()
            if not self._fits(batch[:1], self._budget_s):
                raise
            self._compare(score, batch)
            self._two_fit = False

    def _compare(self, score: Score, batch: Sequence[Prompt]) -> None:
        """Adds the speed of each prompt, over that of plain decoding, to the score."""
        if self._plain:
            with self._running(score.candidate) as other:
                self._compare_side_by_side({OFF: self._plain, score.candidate: other}, score, batch)
            return
        while len(batch) > 1 and not self._fits(batch, self._budget_s):
            batch = batch[:-1]
        each: dict[TuneCandidate, list[float]] = {}
        for side in self._order.sample((OFF, score.candidate), 2):
            with self._running(side) as generator:
                each[side] = [self._ask(generator, prompt, score, side) for prompt in batch]
        for mine, plain in zip(each[score.candidate], each[OFF], strict=True):
            _add(score, mine, plain)

    def _compare_side_by_side(
        self, sides: Mapping[TuneCandidate, Generator], score: Score, batch: Sequence[Prompt]
    ) -> None:
        for prompt in batch:
            if self._left_s(self._budget_s) < self._costs.pair_s(prompt) + 2 * self._costs.stop_s:
                return
            order = self._order.sample(tuple(sides), 2)
            speeds = {side: self._ask(sides[side], prompt, score, side) for side in order}
            _add(score, speeds[score.candidate], speeds[OFF])

    def _ask(self, generator: Generator, prompt: Prompt, score: Score, side: TuneCandidate) -> float:
        began = self._clock()
        try:
            stats = generator.answer(prompt.request(), self._sampling, self._limits).stats
        except EngineError as error:
            if side == OFF:
                raise PlainDecodingError(f"plain decoding failed: {error}") from error
            raise
        took = self._clock() - began
        self._costs.answers[prompt.id] = max(self._costs.answers.get(prompt.id, 0.0), took)
        if side != OFF:
            score.count(stats)
        return stats.tokens_per_s

    # -- engines and their cost ---------------------------------------------------------------------------------------

    def _start_plain(self, plain: ExitStack) -> None:
        """Also measures what an answer takes, so that the first candidate's turn can be predicted."""
        self._plain = plain.enter_context(self._running(OFF))
        self._ask(self._plain, self._prompts[0], Score(OFF), OFF)

    @contextmanager
    def _running(self, candidate: TuneCandidate) -> Iterator[Generator]:
        began = self._clock()
        with self._open(candidate, max(self._left_s(self._budget_s), 1.0)) as generator:
            generator.answer(_WARM_UP_TEXT, self._sampling, Limits(_WARM_UP_TOKENS))
            self._costs.start_s = max(self._costs.start_s, self._clock() - began)
            yield generator
            ended = self._clock()
        self._costs.stop_s = max(self._costs.stop_s, self._clock() - ended)

    @property
    def _num_starts(self) -> int:
        """Of a candidate's turn."""
        return 1 if self._plain else 2

    def _fits(self, prompts: Sequence[Prompt], until_s: float) -> bool:
        return self._costs.turn_s(prompts, self._num_starts) <= self._left_s(until_s)

    def _left_s(self, until_s: float) -> float:
        return self._started + until_s - self._clock()

    def _share(self) -> float:
        return share_of(self._clock() - self._started, self._budget_s)


def _add(score: Score, speed: float, plain_speed: float) -> None:
    if speed and plain_speed:
        score.ratios.append(ratio(speed, plain_speed))


def _mixed(candidates: Sequence[TuneCandidate]) -> list[TuneCandidate]:
    """One of each drafter first, then a second one of each: where time is short, every drafter had its turn."""
    by_drafter: dict[tuple[str, str | None], list[TuneCandidate]] = {}
    for candidate in candidates:
        if candidate != OFF:
            by_drafter.setdefault((candidate.drafter, candidate.draft), []).append(candidate)
    longest = max(map(len, by_drafter.values()), default=0)
    return [own[i] for i in range(longest) for own in by_drafter.values() if i < len(own)]


def _next_rung(scores: Sequence[Score], alive: Sequence[Score], rung: int) -> list[Score]:
    """The better half of those that drafted. Where none did: those that had no turn yet, then the better half of all.

    Empty once a single one has had the rest of the time.
    """
    left = [score for score in scores if score.dropped_after is None]
    unseen = [score for score in left if not score.ratios]
    drafting = [score for score in left if score.ratios and not score.drafted_nothing]
    if not drafting and unseen:
        return [] if list(alive) == unseen else unseen
    going_on = drafting or left
    return [] if len(alive) == 1 else fastest(going_on, math.ceil(len(going_on) / 2), rung)
