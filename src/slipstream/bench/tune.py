"""Tune: which drafter, at which draft length, is fastest here? Successive halving within a time budget.

All candidates answer the same prompts, interleaved; after each rung the slower half goes, so that the time is spent
on telling the good ones apart. Whenever it is stopped, the best so far is known.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from slipstream.bench.intervals import median_interval
from slipstream.bench.results import PLAIN, Interval, RowCost
from slipstream.bench.workload import Prompt
from slipstream.core.generator import Generator
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits

LENGTHS = (1, 2, 3, 4, 6, 8, 12)
_RULE_START = 4  # where the rule of thumb begins
_KEEP = 0.5  # of the candidates, after each rung


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to decode. `policy` is a fixed length or `auto`; the drafter `none` is plain decoding."""

    drafter: str
    policy: str
    draft: str | None = None

    @property
    def label(self) -> str:
        if self.drafter == PLAIN:
            return PLAIN
        parts = [self.drafter, self.policy] + ([self.draft] if self.draft else [])
        return " ".join(parts)

    @property
    def length(self) -> int | None:
        """The fixed draft length; None for `auto`."""
        return int(self.policy[6:-1]) if self.policy.startswith("fixed(") else None


OFF = Candidate(PLAIN, "auto")


@dataclass(slots=True)
class Score:
    """What is known of a candidate."""

    candidate: Candidate
    ratios: list[float] = field(default_factory=list)  # speed over plain decoding's, prompt by prompt
    num_drafted: int = 0
    num_accepted: int = 0
    tokens: int = 0
    seconds: float = 0.0
    dropped_after: int | None = None  # the rung

    @property
    def speedup(self) -> float:
        """Tokens over seconds against plain decoding on the same prompts, as the geometric mean of the prompts."""
        if not self.ratios:
            return 0.0
        return math.exp(sum(math.log(max(r, 1e-9)) for r in self.ratios) / len(self.ratios))

    @property
    def interval(self) -> Interval:
        return median_interval(self.ratios)

    @property
    def acceptance_rate(self) -> float:
        return self.num_accepted / self.num_drafted if self.num_drafted else 0.0


@dataclass(frozen=True, slots=True)
class TuneResult:
    """Scores, best first. `complete` is False when it was interrupted."""

    scores: list[Score]
    cost_by_rows: list[RowCost]
    elapsed_s: float
    complete: bool

    @property
    def best(self) -> Score:
        return self.scores[0]

    def rule_of_thumb(self) -> Score | None:
        """Where "acceptance above 70 %: longer, below 50 %: shorter" ends, walked over the measured candidates."""
        drafter = next((s.candidate for s in self.scores if s.candidate.length is not None), None)
        if drafter is None:
            return None
        ladder = sorted(
            (s for s in self.scores if s.candidate.length is not None and _same_drafter(s.candidate, drafter)),
            key=lambda s: s.candidate.length or 0,
        )
        at = min(range(len(ladder)), key=lambda i: abs((ladder[i].candidate.length or 0) - _RULE_START))
        visited = set()
        while at not in visited:
            visited.add(at)
            rate = ladder[at].acceptance_rate
            step = 1 if rate > 0.7 else -1 if rate < 0.5 else 0
            at = min(max(at + step, 0), len(ladder) - 1)
        return ladder[at]


def _same_drafter(a: Candidate, b: Candidate) -> bool:
    return a.drafter == b.drafter and a.draft == b.draft


Progress = Callable[[float, str], None]  # share of the time budget, what is going on
MakeGenerator = Callable[[Candidate], Generator]


def grid(drafters: Sequence[str], drafts: Sequence[str], lengths: Sequence[int] = LENGTHS) -> list[Candidate]:
    """Every drafter at every length and at `auto`, and plain decoding. Drafters that take a draft get each of them."""
    candidates = [OFF]
    for drafter in drafters:
        for draft in drafts if drafter.startswith(("model", "translate")) else (None,):
            candidates += [Candidate(drafter, f"fixed({n})", draft) for n in lengths]
            candidates.append(Candidate(drafter, "auto", draft))
    return candidates


def hopeless(candidate: Candidate, cost_by_rows: Sequence[RowCost]) -> bool:
    """Whether a fixed length could not pay even if every drafted token were accepted."""
    if candidate.length is None:
        return False
    cost = next((c.over_one for c in cost_by_rows if c.rows >= candidate.length + 1), None)
    return cost is not None and (candidate.length + 1) / cost < 1.0


class Tuner:
    def __init__(
        self,
        make_generator: MakeGenerator,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        limits: Limits,
        budget_s: float,
        seed: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._make_generator = make_generator
        self._prompts = list(prompts)
        self._sampling = sampling
        self._limits = limits
        self._budget_s = budget_s
        self._order = random.Random(seed)
        self._clock = clock
        self._generators: dict[Candidate, Generator] = {}
        self._num_asked = 0

    def run(self, candidates: Sequence[Candidate], cost_by_rows: list[RowCost], progress: Progress) -> TuneResult:
        """Ends within the budget and one prompt's time. Ctrl-C ends it at once with the best so far."""
        started = self._clock()
        scores = [Score(c) for c in candidates if c != OFF and not hopeless(c, cost_by_rows)]
        alive = list(scores)
        rungs = max(1, math.ceil(math.log2(max(len(alive), 2))))
        complete = True
        try:
            for rung in range(rungs):
                deadline = started + self._budget_s * (rung + 1) / rungs
                self._run_rung(alive, deadline, lambda: (self._clock() - started) / self._budget_s, rung, progress)
                alive = self._best_half(alive, rung, last=rung == rungs - 1)
        except KeyboardInterrupt:
            complete = False
        plain = Score(OFF, ratios=[1.0])
        ranked = sorted(
            [*scores, plain], key=lambda s: (s.dropped_after is not None, -(s.dropped_after or 0), -s.speedup)
        )
        # A candidate that survived but is no faster than plain decoding loses to it.
        ranked.sort(key=lambda s: s.dropped_after is None and s.speedup <= 1.0 and s is not plain)
        return TuneResult(ranked, cost_by_rows, self._clock() - started, complete)

    def _run_rung(
        self, alive: list[Score], deadline: float, share: Callable[[], float], rung: int, progress: Progress
    ) -> None:
        """At least one prompt for all, then more for as long as another round of them fits the rung's time."""
        while True:
            began = self._clock()
            prompt = self._next_prompt()
            plain_speed = self._ask(Score(OFF), prompt)
            for score in self._order.sample(alive, len(alive)):
                progress(min(share(), 1.0), f"rung {rung + 1}, {len(alive)} left: {score.candidate.label}")
                speed = self._ask(score, prompt)
                if plain_speed and speed:
                    score.ratios.append(speed / plain_speed)
            now = self._clock()
            if now + (now - began) > deadline:
                return

    def _next_prompt(self) -> Prompt:
        """Each prompt once, in random order; then again, the drafters having forgotten."""
        turn = self._num_asked % len(self._prompts)
        if turn == 0:
            self._order.shuffle(self._prompts)
            for generator in self._generators.values():
                generator.forget_learned()
        self._num_asked += 1
        return self._prompts[turn]

    def _ask(self, score: Score, prompt: Prompt) -> float:
        generator = self._generators.get(score.candidate)
        if generator is None:
            generator = self._generators[score.candidate] = self._make_generator(score.candidate)
        # Speeds are taken after the first token, so the prompt may come from the cache: that saves time, not tokens.
        stats = generator.answer(prompt.request(), self._sampling, self._limits).stats
        score.num_drafted += stats.num_drafted
        score.num_accepted += stats.num_accepted
        score.tokens += stats.num_tokens
        score.seconds += stats.total_s
        return stats.tokens_per_s

    def _best_half(self, alive: list[Score], rung: int, last: bool) -> list[Score]:
        if last:
            return alive
        alive = sorted(alive, key=lambda s: -s.speedup)
        keep = max(1, math.ceil(len(alive) * _KEEP))
        for score in alive[keep:]:
            score.dropped_after = rung
        return alive[:keep]
