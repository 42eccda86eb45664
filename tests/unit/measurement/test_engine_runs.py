"""Benchmarks, tuning and audits of engines that own their loop, on generators with fixed answers."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest

from slipstream.cli.tune import explanation
from slipstream.core.generator import Answer
from slipstream.core.sampling import Sampling
from slipstream.core.stats import Stats
from slipstream.core.stream import Limits
from slipstream.engines.engine_types import TokenCandidate
from slipstream.errors import EngineError, EngineRequestError, EngineStartError
from slipstream.measurement.engine_audit import answer_all, audit_engines, compare, gap_of_candidates
from slipstream.measurement.load_test import run_load
from slipstream.measurement.load_test_result import load_result
from slipstream.measurement.runner import BenchSettings
from slipstream.measurement.table import print_table
from slipstream.measurement.tune import OFF, TuneCandidate
from slipstream.measurement.tune_restarts import RestartTuner
from slipstream.measurement.workload import Prompt

PROMPTS = [Prompt(f"p{i}", "chat", (f"question {i}",)) for i in range(3)]


class FixedSpeed:
    """Answers at `speed` tokens a second, by its own figures; dies at the `dies_at`th answer."""

    def __init__(self, label: str, speed: float, text: str = "same", dies_at: int | None = None) -> None:
        self.label, self.speed, self.text, self.dies_at = label, speed, text, dies_at
        self.asked = self.busy = self.most_busy = 0
        self._lock = threading.Lock()
        self._all_in = threading.Event()

    def answer(self, prompt, sampling, limits):
        with self._lock:
            self.asked += 1
            number = self.asked
            self.busy += 1
            self.most_busy = max(self.most_busy, self.busy)
            if self.busy >= 2:
                self._all_in.set()
        self._all_in.wait(0.02)
        with self._lock:
            self.busy -= 1
        if self.dies_at is not None and number >= self.dies_at:
            raise EngineRequestError("the engine ended with status 137", partial_text="so")
        drafted = 0 if self.label == "none" else 8
        stats = Stats(
            num_tokens=11, rounds=11 - drafted // 2, target_forwards=11 - drafted // 2, num_drafted=drafted,
            num_accepted=drafted // 2, ttft_s=0.1, total_s=0.1 + 10 / self.speed,
        )  # fmt: skip
        return Answer(self.text, (), "length", stats)

    def forget_prompts(self) -> None: ...

    def forget_learned(self) -> None: ...


def openers(*generators):
    @contextmanager
    def opened(generator):
        yield generator

    return {g.label: (lambda g=g: opened(g)) for g in generators}


def load(*generators, streams=(1, 2), passes=2):
    settings = BenchSettings(limits=Limits(16), passes=passes)
    run = run_load(openers(*generators), PROMPTS, settings, streams, lambda done, total, what: None)
    return run, load_result(run, settings, {"model": "m", "dtype": "x", "device": "y"}, "command")


def test_each_number_of_streams_is_judged_apart():
    plain, fast = FixedSpeed("none", 10), FixedSpeed("fast", 20)
    run, result = load(plain, fast)
    assert run.complete
    assert [(r.drafter, r.kind) for r in result.runs] == [
        ("none", "1 stream"), ("none", "2 streams"), ("fast", "1 stream"), ("fast", "2 streams"),
    ]  # fmt: skip
    assert [r.speedup.value for r in result.runs if r.drafter == "fast"] == pytest.approx([2.0, 2.0])
    assert all(r.acceptance_rate == 0.5 for r in result.runs if r.drafter == "fast")
    assert result.verdict.word == "pays"
    assert plain.most_busy == 2
    assert any(note.startswith("time to first token, 2 streams") for note in result.notes)


def test_a_slower_engine_does_not_pay_and_a_different_text_is_broken():
    assert load(FixedSpeed("none", 20), FixedSpeed("slow", 10))[1].verdict.word == "does not pay"
    assert load(FixedSpeed("none", 20), FixedSpeed("odd", 40, text="other"))[1].verdict.word == "broken"


def test_an_engine_that_dies_leaves_what_was_measured():
    run, result = load(FixedSpeed("none", 10), FixedSpeed("fast", 20, dies_at=12))
    assert run.error == "the engine ended with status 137"
    assert {s.generator for s in run.samples} == {"none", "fast"}
    assert result.partial
    assert result.notes[0] == "stopped early: the engine ended with status 137"


def test_without_plain_decoding_nothing_is_claimed(capsys):
    _, result = load(FixedSpeed("fast", 20), streams=(1,))
    assert result.verdict.word == "not compared"
    assert [run.verdict.word for run in result.runs] == ["not compared"]
    print_table(result)
    said = capsys.readouterr().out
    assert "text identical: not compared" in said
    assert "1.00x" not in said


def test_more_streams_than_prompts_take_prompts_again():
    run, _ = load(FixedSpeed("none", 10), streams=(8,), passes=1)
    assert len(run.samples) == 9
    assert len({s.prompt.id for s in run.samples}) == 9


SPEEDS = {"none auto": 10.0, "a fixed(2)": 12.0, "a fixed(4)": 15.0, "b fixed(2)": 8.0, "b fixed(4)": 9.0}


class Starts:
    """Engines on a simulated clock: a start takes 3 s, a stop 1 s, an answer as long as its speed says.

    `idle` drafts nothing; `most` engines fit at the same time.
    """

    def __init__(self, broken: str | None = None, idle: str | None = None, most: int = 2, speeds=None) -> None:
        self.now = 0.0
        self.count = self.most_alive = 0
        self.alive: list[str] = []
        self.asked: list[str] = []
        self.speeds = speeds or SPEEDS
        self._broken, self._idle, self._most = broken, idle, most

    def clock(self) -> float:
        return self.now

    @contextmanager
    def __call__(self, candidate: TuneCandidate, limit_s: float):
        label = "none auto" if candidate == OFF else candidate.label
        self.count += 1
        self.now += 3.0
        if label == self._broken or len(self.alive) == self._most:
            raise EngineStartError("it did not start")
        self.alive.append(label)
        self.most_alive = max(self.most_alive, len(self.alive))
        try:
            yield Asked(self, label, label in ("none auto", self._idle))
        finally:
            self.now += 1.0
            self.alive.remove(label)


class Asked(FixedSpeed):
    def __init__(self, starts: Starts, label: str, idle: bool) -> None:
        super().__init__("none" if idle else label, starts.speeds[label])
        self._starts, self._own = starts, label
        self._all_in.set()

    def answer(self, prompt, sampling, limits):
        assert self._own in self._starts.alive
        self._starts.asked.append(self._own)
        answer = super().answer(prompt, sampling, limits)
        self._starts.now += answer.stats.total_s
        return answer


CANDIDATES = [TuneCandidate(d, f"fixed({n})") for d in ("a", "b") for n in (2, 4)]


def tune(starts: Starts, budget_s: float = 200.0):
    tuner = RestartTuner(starts, PROMPTS, Sampling(), Limits(8), budget_s, clock=starts.clock)
    return tuner, tuner.run([OFF, *CANDIDATES], lambda share, what: None)


def test_tuning_by_restarts_finds_the_fastest():
    starts = Starts()
    _, result = tune(starts)
    assert result.complete
    assert result.best.candidate.label == "a fixed(4)"
    assert result.best.speedup == pytest.approx(1.5)
    assert starts.count == 1 + 4 + 2 + 1  # plain decoding once; four candidates, the better two, the best
    assert next(s for s in result.scores if s.candidate == OFF).speedup == 1.0


def test_a_candidate_and_plain_decoding_answer_in_turns():
    starts = Starts()
    tune(starts)
    last = starts.asked[-6:]  # of the last candidate, prompt by prompt, the two in random order
    assert [set(last[i : i + 2]) for i in (0, 2, 4)] == [{"none auto", "a fixed(4)"}] * 3
    assert starts.most_alive == 2


def test_what_drafted_nothing_is_never_chosen():
    _, result = tune(Starts(idle="a fixed(4)"))
    idle = next(s for s in result.scores if s.candidate.label == "a fixed(4)")
    assert idle.speedup == pytest.approx(1.5)
    assert idle.drafted_nothing
    assert result.best.candidate.label == "a fixed(2)"
    listed = {s["drafter"] + " " + s["policy"]: s["drafted_nothing"] for s in result.to_dict()["scores"]}
    assert listed["a fixed(4)"] and not listed["a fixed(2)"]
    assert "drafted nothing: a fixed(4)" in explanation(result)


def test_a_gain_within_noise_is_not_chosen():
    close = SPEEDS | {"a fixed(2)": 10.2, "a fixed(4)": 10.1}
    _, result = tune(Starts(speeds=close), budget_s=60.0)
    assert result.best.candidate == OFF
    assert "plain decoding, because nothing was faster beyond noise" in explanation(result)


def test_plain_decoding_wins_where_nothing_is_faster():
    _, result = tune(Starts())
    labels = [s.candidate.label for s in result.scores]
    assert labels.index("none") < labels.index("b fixed(4)")


def test_a_candidate_that_does_not_start_is_out_and_said():
    tuner, result = tune(Starts(broken="a fixed(4)"))
    assert tuner.failures == {"a fixed(4)": "it did not start"}
    assert result.best.candidate.label == "a fixed(2)"


def test_where_two_engines_don_t_fit_they_take_turns():
    starts = Starts(most=1)
    tuner, result = tune(starts, budget_s=400.0)
    assert starts.most_alive == 1
    assert tuner.failures == {}
    assert result.best.candidate.label == "a fixed(4)"


@pytest.mark.parametrize("budget_s", [14.0, 17.0, 23.0, 31.0, 47.0, 90.0, 200.0])
def test_the_time_budget_is_kept_with_starts_and_stops(budget_s):
    starts = Starts()
    tuner, result = tune(starts, budget_s)
    assert result.elapsed_s <= budget_s
    assert starts.now == result.elapsed_s
    measured = {s.candidate.label for s in result.scores} - {"none"}
    assert measured | set(tuner.unmeasured) == {c.label for c in CANDIDATES}


@pytest.mark.parametrize("budget_s", [1.0, 8.0])
def test_a_search_that_measured_nothing_chooses_nothing(budget_s):
    starts = Starts()
    with pytest.raises(EngineError, match=r"no candidate was measured, so nothing is chosen.*add --seconds"):
        tune(starts, budget_s)
    assert starts.count == 1  # only plain decoding, which shows what a start takes


def test_each_drafter_has_its_turn_before_a_second_length():
    starts = Starts()
    tune(starts)
    first = dict.fromkeys(label for label in starts.asked if label != "none auto")
    assert list(first) == ["a fixed(2)", "b fixed(2)", "a fixed(4)", "b fixed(4)"]


def candidates(*tokens: tuple[str, float, str, float]):
    return [(TokenCandidate(a, p), TokenCandidate(b, q)) for a, p, b, q in tokens]


def test_a_near_tie_is_told_from_a_bug_by_the_engine_s_own_probabilities():
    told = candidates(("The", -0.1, "A", -3.0), (" cat", -0.70, " dog", -0.71))
    assert gap_of_candidates(told, 4, "The dog") == pytest.approx(0.01)
    assert gap_of_candidates(told, 0, "A dog") == pytest.approx(2.9)
    assert gap_of_candidates(told, 4, "The bird") == float("inf")
    assert gap_of_candidates(told, 99, "The cat and") is None


@pytest.mark.parametrize(("gap", "outcome"), [(0.01, "tie"), (2.0, "BUG"), (None, "BUG")])
def test_findings_of_an_engine(gap, outcome):
    samplings = [Sampling(), Sampling(temperature=0.8)]
    plain = dict(answer_all(FixedSpeed("none", 10, "The cat"), PROMPTS[:1], samplings, Limits(8)))
    other = dict(answer_all(FixedSpeed("x", 10, "The dog"), PROMPTS[:1], samplings, Limits(8)))
    found = list(compare(plain, other, "x", PROMPTS[:1], samplings, lambda prompt, at, text: gap))
    assert [f.outcome for f in found] == [outcome, "BUG"]  # of sampled tokens nothing can be said
    assert found[0].difference.position == 4
    same = list(compare(plain, plain, "x", PROMPTS[:1], samplings, lambda *_: gap))
    assert [f.outcome for f in same] == ["identical", "identical"]


def audited(plain: FixedSpeed, other: FixedSpeed, gap: float | None = 1.0):
    both, same_gap = openers(plain, other), lambda prompt, at, text: gap
    return audit_engines(both, PROMPTS, [Sampling()], Limits(8), lambda generator: same_gap, lambda *_: None)


def test_an_audit_compares_every_answer_and_asks_plain_decoding_where_texts_differ():
    same = audited(FixedSpeed("none", 10), FixedSpeed("ngram", 10))
    assert same.complete and [f.outcome for f in same.answers] == ["identical"] * len(PROMPTS)
    for gap, outcome in ((1.0, "BUG"), (None, "BUG"), (0.01, "tie")):
        other = audited(FixedSpeed("none", 10), FixedSpeed("ngram", 10, text="some"), gap)
        assert {f.outcome for f in other.answers} == {outcome}


@pytest.mark.parametrize("dies", ["none", "ngram"])
def test_an_engine_that_dies_in_mid_audit_leaves_what_was_compared(dies):
    found = audited(*(FixedSpeed(label, 10, dies_at=2 if label == dies else None) for label in ("none", "ngram")))
    assert not found.complete
    assert found.errors == [f"{dies}: the engine ended with status 137"]
    assert [f.outcome for f in found.answers] == ["identical"]


def test_an_audit_that_is_left_before_plain_decoding_claims_nothing():
    class Left(FixedSpeed):
        def answer(self, prompt, sampling, limits):
            raise KeyboardInterrupt

    found = audited(FixedSpeed("none", 10), Left("ngram", 10))
    assert not found.complete and found.answers == []
