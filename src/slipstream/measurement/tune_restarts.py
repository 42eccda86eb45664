"""Tuning an engine that is set up once, at its start: every candidate costs a start, so it is asked in batches.

Successive halving as in `tune`: all candidates get a few prompts, the better half more, and so on. Plain decoding is
measured first on each prompt, in a start of its own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from slipstream.core.generator import Generator
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.errors import EngineError
from slipstream.measurement.ratio import ratio
from slipstream.measurement.tune import OFF, Progress, Score, TuneCandidate, TuneResult, ranked, share_of
from slipstream.measurement.workload import Prompt

Open = Callable[[TuneCandidate], AbstractContextManager[Generator]]
_FIRST_PROMPTS = 2  # of the first rung; later rungs have twice as many each


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
        self._prompts = list(prompts)
        self._sampling = sampling
        self._limits = limits
        self._budget_s = budget_s
        self._clock = clock
        self.failures: dict[str, str] = {}  # candidates that did not start, or died, and what was said

    def run(self, candidates: Sequence[TuneCandidate], progress: Progress) -> TuneResult:
        """Ends within the budget and one candidate's turn. Ctrl-C ends it at once with the best so far.

        A candidate whose engine fails is out; the search goes on. Where plain decoding fails, the search ends with what
        was measured, or raises EngineError where nothing was.
        """
        started = self._clock()
        scores = [Score(candidate) for candidate in candidates if candidate != OFF]
        complete, failure = True, None
        try:
            self._run_rungs(scores, started, progress)
        except KeyboardInterrupt:
            complete = False
        except Exception as error:
            if not any(score.ratios for score in scores):
                raise
            complete, failure = False, error
        measured = ranked([score for score in scores if score.ratios])
        return TuneResult(measured, [], self._clock() - started, complete, failure)

    def _run_rungs(self, scores: list[Score], started: float, progress: Progress) -> None:
        alive, first, size = scores, 0, _FIRST_PROMPTS
        for rung in range(max(1, math.ceil(math.log2(max(len(scores), 2))))):
            batch = [self._prompts[i % len(self._prompts)] for i in range(first, first + size)]
            progress(self._share(started), f"rung {rung + 1}: plain decoding")
            plain = self._speeds(OFF, batch, None)
            for score in alive:
                if self._share(started) >= 1.0:
                    return
                progress(self._share(started), f"rung {rung + 1}, {len(alive)} left: {score.candidate.label}")
                self._measure(score, batch, plain, rung)
            alive = self._better_half([s for s in alive if s.dropped_after is None], rung + 1)
            first, size = first + size, size * 2
            if len(alive) <= 1:
                return

    def _measure(self, score: Score, batch: Sequence[Prompt], plain: Sequence[float], rung: int) -> None:
        try:
            speeds = self._speeds(score.candidate, batch, score)
        except EngineError as error:
            self.failures[score.candidate.label] = str(error)
            score.dropped_after = rung
            return
        score.ratios += [ratio(mine, base) for mine, base in zip(speeds, plain, strict=True) if mine and base]

    def _speeds(self, candidate: TuneCandidate, batch: Sequence[Prompt], score: Score | None) -> list[float]:
        speeds = []
        with self._open(candidate) as generator:
            generator.answer(batch[0].request(), self._sampling, Limits(8))  # the first answer after a start is slow
            for prompt in batch:
                stats = generator.answer(prompt.request(), self._sampling, self._limits).stats
                if score:
                    score.count(stats)
                speeds.append(stats.tokens_per_s)
        return speeds

    def _better_half(self, alive: list[Score], rung: int) -> list[Score]:
        alive = sorted(alive, key=lambda s: -s.speedup)
        keep = math.ceil(len(alive) / 2)
        for score in alive[keep:]:
            score.dropped_after = rung
        return alive[:keep]

    def _share(self, started: float) -> float:
        return share_of(self._clock() - started, self._budget_s)
