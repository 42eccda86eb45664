"""Tune: which drafter, at which draft length, is fastest here? Successive halving within a time budget.

Where the engine can replay an answer (see replay.py), plain decoding answers the prompts and all candidates are first
judged by replays at the measured cost of rows; only the best few then run for real, and those that can't be replayed.
The rest is the same for all engines: the candidates answer the same prompts, interleaved, and after each rung the
slower half goes, so that the time is spent on telling the good ones apart. Whenever it is stopped, the best so far is
known.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from slipstream.core.generator import Answer, Generator
from slipstream.core.sampling import Sampling
from slipstream.core.stats import Stats
from slipstream.core.stream import Limits
from slipstream.measurement.intervals import geometric_mean_interval
from slipstream.measurement.ratio import ratio
from slipstream.measurement.results import PLAIN, Interval, RowCost
from slipstream.measurement.workload import Prompt

LENGTHS = (1, 2, 3, 4, 6, 8, 12)
_RULE_START = 4  # where the rule of thumb begins
_KEEP = 0.5  # of the candidates, after each rung
_REPLAY_SHARE = 0.5  # of the time, for replays
_FINALISTS = 5  # candidates that run for real after the replays


@dataclass(frozen=True, slots=True)
class TuneCandidate:
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


OFF = TuneCandidate(PLAIN, "auto")


@dataclass(slots=True)
class Score:
    """What is known of a candidate."""

    candidate: TuneCandidate
    ratios: list[float] = field(default_factory=list)  # speed over plain decoding's, prompt by prompt
    replayed: list[float] = field(default_factory=list)  # the same, by replays
    num_drafted: int = 0
    num_accepted: int = 0
    drafts_counted: bool = True  # False where an engine does not report what it drafted
    dropped_after: int | None = None  # the rung

    @property
    def speedup(self) -> float:
        """Over plain decoding on the same prompts: the geometric mean of what was measured and what was replayed."""
        ratios = [*self.ratios, *self.replayed]
        return math.exp(statistics.fmean(math.log(max(r, 1e-9)) for r in ratios)) if ratios else 0.0

    @property
    def interval(self) -> Interval:
        """The speed-up with its 95 % interval."""
        return geometric_mean_interval([*self.ratios, *self.replayed])

    @property
    def drafted_nothing(self) -> bool:
        """It decoded plainly, by its own counters."""
        is_measured = bool(self.ratios or self.replayed) and self.drafts_counted
        return self.candidate != OFF and is_measured and not self.num_drafted

    @property
    def beats_plain(self) -> bool:
        """It drafts with success, and is faster beyond noise."""
        gains_nothing = self.drafts_counted and not self.num_accepted
        return not gains_nothing and self.interval.low > 1.0

    @property
    def acceptance_rate(self) -> float:
        return ratio(self.num_accepted, self.num_drafted)

    def count(self, stats: Stats) -> None:
        self.num_drafted += stats.num_drafted
        self.num_accepted += stats.num_accepted
        self.drafts_counted &= stats.drafts_counted


@dataclass(frozen=True, slots=True)
class TuneResult:
    """Scores, best first. `complete` is False when it was interrupted, or ended by `error`."""

    scores: list[Score]
    cost_by_rows: list[RowCost]
    elapsed_s: float
    complete: bool
    error: Exception | None = None

    @property
    def best(self) -> Score:
        return self.scores[0]

    def __repr__(self) -> str:
        best = [f"{score.candidate.label}, {score.speedup:.2f}x" for score in self.scores[:1]]
        return f"<TuneResult best of {len(self.scores)}: {best[0] if best else 'none'}>"

    def to_dict(self) -> dict[str, Any]:
        rule = self.rule_of_thumb()
        return {
            "schema": "slipstream.tune/1",
            "partial": not self.complete,
            "elapsed_s": self.elapsed_s,
            "best": asdict(self.best.candidate) | {"speedup": self.best.speedup},
            "rule_of_thumb": rule and asdict(rule.candidate) | {"speedup": rule.speedup},
            "cost_by_rows": [asdict(cost) for cost in self.cost_by_rows],
            "scores": [
                asdict(s.candidate)
                | {
                    "speedup": s.speedup,
                    "interval": [s.interval.low, s.interval.high],
                    "drafted_nothing": s.drafted_nothing,
                    "acceptance_rate": s.acceptance_rate,
                    "runs": len(s.ratios),
                    "replays": len(s.replayed),
                }
                for s in self.scores
            ],
        }

    def rule_of_thumb(self) -> Score | None:
        """Where "acceptance above 70 %: longer, below 50 %: shorter" ends, walked over the measured candidates."""
        drafting = [s for s in self.scores if s.candidate.length is not None and not s.drafted_nothing]
        drafter = next((s.candidate for s in drafting), None)
        if drafter is None:
            return None
        ladder = sorted(
            (s for s in drafting if _same_drafter(s.candidate, drafter)),
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


def _same_drafter(a: TuneCandidate, b: TuneCandidate) -> bool:
    return a.drafter == b.drafter and a.draft == b.draft


Progress = Callable[[float, str], None]  # share of the time budget, what is going on
MakeGenerator = Callable[[TuneCandidate], Generator]
Replay = Callable[[TuneCandidate, Prompt, Answer], Stats | None]  # None: this one can't be replayed


def grid(drafter: str, draft: str | None = None, lengths: Sequence[int] = LENGTHS) -> list[TuneCandidate]:
    """A drafter at each length and at `auto`."""
    fixed = [TuneCandidate(drafter, f"fixed({n})", draft) for n in lengths]
    return [*fixed, TuneCandidate(drafter, "auto", draft)]


def hopeless(candidate: TuneCandidate, cost_by_rows: Sequence[RowCost]) -> bool:
    """Whether a fixed length could not pay even if every drafted token were accepted."""
    if candidate.length is None:
        return False
    cost = next((c.over_one for c in cost_by_rows if c.rows >= candidate.length + 1), None)
    return cost is not None and candidate.length + 1 < cost


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
        replay: Replay | None = None,
    ) -> None:
        self._make_generator = make_generator
        self._replay = replay
        self._prompts = list(prompts)
        self._sampling = sampling
        self._limits = limits
        self._budget_s = budget_s
        self._order = random.Random(seed)
        self._clock = clock
        self._generators: dict[TuneCandidate, Generator] = {}
        self._num_asked = 0

    def run(self, candidates: Sequence[TuneCandidate], cost_by_rows: list[RowCost], progress: Progress) -> TuneResult:
        """Each candidate runs one prompt, whatever that takes; ends then within the budget and one prompt's time.
        Ctrl-C ends it at once with the best so far, and so does an error; both are raised if nothing was measured."""
        started = self._clock()

        def share() -> float:
            return share_of(self._clock() - started, self._budget_s)

        scores = [Score(c) for c in candidates if c != OFF and not hopeless(c, cost_by_rows)]
        complete, failure = True, None
        try:
            alive = list(scores)
            if self._replay:
                self._run_replays(alive, started + _REPLAY_SHARE * self._budget_s, share, progress)
                replayed = [score for score in alive if score.replayed]
                alive = [*fastest(replayed, _FINALISTS, rung=0), *(score for score in alive if not score.replayed)]
            self._run_rungs(alive, started + self._budget_s, share, progress)
        except (KeyboardInterrupt, Exception) as error:
            if not any(score.ratios or score.replayed for score in scores):
                raise
            complete, failure = False, error if isinstance(error, Exception) else None
        return TuneResult(ranked(scores), cost_by_rows, self._clock() - started, complete, failure)

    def _run_replays(
        self, scores: list[Score], deadline: float, share: Callable[[], float], progress: Progress
    ) -> None:
        """Each prompt once, for as long as there is time: plain decoding for real, every candidate by replay."""
        assert self._replay is not None
        self._order.shuffle(self._prompts)
        for prompt in self._prompts:
            began = self._clock()
            progress(share(), f"replaying {len(scores)} candidates: {prompt.kind}")
            answer = self._generator(OFF).answer(prompt.request(), self._sampling, self._limits)
            if len(answer.tokens) > 1:
                self._replay_all(scores, prompt, answer)
            now = self._clock()
            if now + (now - began) > deadline:
                return

    def _replay_all(self, scores: list[Score], prompt: Prompt, answer: Answer) -> None:
        assert self._replay is not None
        plain = self._replay(OFF, prompt, answer)
        for score in scores:
            if stats := self._replay(score.candidate, prompt, answer):
                score.count(stats)
                if plain and plain.tokens_per_s:
                    score.replayed.append(ratio(stats.tokens_per_s, plain.tokens_per_s))

    def _run_rungs(self, alive: list[Score], deadline: float, share: Callable[[], float], progress: Progress) -> None:
        """Halves the candidates until one is left, at equal time for each rung."""
        rungs = max(1, math.ceil(math.log2(max(len(alive), 2))))
        started = self._clock()
        for rung in range(rungs):
            end = started + (deadline - started) * ratio(rung + 1, rungs)
            self._run_rung(alive, end, share, rung, progress)
            if rung < rungs - 1:
                alive = fastest(alive, math.ceil(len(alive) * _KEEP), rung + 1)

    def _run_rung(
        self, alive: list[Score], deadline: float, share: Callable[[], float], rung: int, progress: Progress
    ) -> None:
        """At least one prompt for all, then more for as long as another round of them fits the rung's time."""
        while True:
            began = self._clock()
            prompt = self._next_prompt()
            plain_speed = self._ask(Score(OFF), prompt)
            for score in self._order.sample(alive, len(alive)):
                progress(share(), f"rung {rung + 1}, {len(alive)} left: {score.candidate.label}")
                speed = self._ask(score, prompt)
                if plain_speed and speed:
                    score.ratios.append(ratio(speed, plain_speed))
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

    def _generator(self, candidate: TuneCandidate) -> Generator:
        if candidate not in self._generators:
            self._generators[candidate] = self._make_generator(candidate)
        return self._generators[candidate]

    def _ask(self, score: Score, prompt: Prompt) -> float:
        # Speeds are taken after the first token, so the prompt may come from the cache: that saves time, not tokens.
        stats = self._generator(score.candidate).answer(prompt.request(), self._sampling, self._limits).stats
        score.count(stats)
        return stats.tokens_per_s


def fastest(alive: Sequence[Score], keep: int, rung: int) -> list[Score]:
    """The fastest so far, best first; the others are dropped."""
    ordered = sorted(alive, key=lambda s: -s.speedup)
    for score in ordered[keep:]:
        score.dropped_after = rung
    return ordered[:keep]


def share_of(elapsed_s: float, budget_s: float) -> float:
    """Of the time budget, at most 1; a budget of nothing is used up."""
    return min(ratio(elapsed_s, budget_s), 1.0) if budget_s > 0 else 1.0


def ranked(scores: list[Score]) -> list[Score]:
    """Best first: the survivors, then those dropped last.

    Plain decoding stands before what is not faster beyond noise, and before what drafted nothing.
    """
    plain = Score(OFF, ratios=[1.0])

    def key(score: Score) -> tuple[bool, float, float]:
        survived = math.inf if score.dropped_after is None else score.dropped_after
        return (score is not plain and not score.beats_plain, -survived, -score.speedup)

    return sorted([*scores, plain], key=key)
