"""Tuning finds the best candidate within its time, and keeps the best so far when it is stopped."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from slipstream.cli.tune import _finish
from slipstream.core.generator import Answer
from slipstream.core.sampling import Sampling
from slipstream.core.stats import Stats
from slipstream.core.stream import Limits
from slipstream.errors import SlipstreamError
from slipstream.measurement.results import RowCost
from slipstream.measurement.tune import OFF, TuneCandidate, Tuner, grid, hopeless
from slipstream.measurement.workload import Prompt
from slipstream.tasks.settings_file import FileSettings

FLAT = [RowCost(n, 1.0, 1.0 + 0.01 * n) for n in (1, 2, 3, 4, 6, 8, 12, 16)]
STEEP = [RowCost(n, float(n), float(n)) for n in (1, 2, 3, 4, 6, 8, 12, 16)]
PROMPTS = [Prompt(f"p{i}", "chat", (f"text {i}",), raw=True) for i in range(10)]


class World:
    """Simulated time and speeds: a candidate's speed is what `speed_of` says, with noise."""

    def __init__(self, speed_of, noise=0.03, seed=0, stop_after=None, stop_with=KeyboardInterrupt) -> None:
        self.now = 0.0
        self._speed_of = speed_of
        self._noise = random.Random(seed)
        self._spread = noise
        self._stop_after, self._stop_with = stop_after, stop_with
        self.asked: list[str] = []

    def clock(self) -> float:
        return self.now

    def generator(self, candidate: TuneCandidate):
        world = self

        class Simulated:
            label = candidate.label

            def answer(self, prompt, sampling, limits):
                world.asked.append(candidate.label)
                if world._stop_after and len(world.asked) > world._stop_after:
                    raise world._stop_with
                speed = 50 * world._speed_of(candidate) * (1 + world._noise.gauss(0, world._spread))
                world.now += limits.max_tokens / speed
                accepted = 0 if candidate == OFF else 30 - 2 * (candidate.length or 5)
                stats = Stats(num_tokens=limits.max_tokens, num_drafted=40, num_accepted=max(accepted, 0))
                stats.total_s = (limits.max_tokens - 1) / speed
                return Answer("", (1, 2), "length", stats)

            def forget_prompts(self):
                pass

            def forget_learned(self):
                pass

        return Simulated()


def tune(world: World, candidates, costs=FLAT, budget_s=180.0, replay=None):
    tuner = Tuner(world.generator, PROMPTS, Sampling(), Limits(48), budget_s, clock=world.clock, replay=replay)
    return tuner.run(candidates, costs, lambda share, what: None)


def of_drafters(*drafters: str) -> list[TuneCandidate]:
    return [OFF, *(candidate for drafter in drafters for candidate in grid(drafter))]


def peaked(best_drafter: str, best_length: int):
    def speed(candidate: TuneCandidate) -> float:
        if candidate == OFF:
            return 1.0
        if candidate.length is None:
            return 1.6
        return (2.0 if candidate.drafter == best_drafter else 1.5) - 0.1 * abs(candidate.length - best_length)

    return speed


@pytest.mark.parametrize("seed", range(5))
def test_the_best_is_found_within_the_time(seed: int) -> None:
    world = World(peaked("suffix", 6), seed=seed)
    candidates = of_drafters("ngram", "suffix", "suffix(width=3)")
    result = tune(world, candidates)
    true_speed = peaked("suffix", 6)
    assert true_speed(result.best.candidate) >= 0.95 * max(map(true_speed, candidates))
    assert result.complete
    assert result.elapsed_s <= 180 * 1.05


def test_off_wins_where_nothing_pays() -> None:
    result = tune(World(lambda c: 1.0 if c == OFF else 0.8), of_drafters("ngram", "suffix"))
    assert result.best.candidate == OFF


def test_what_drafts_in_vain_is_not_chosen_however_fast_it_seems() -> None:
    world = World(lambda c: 1.0 if c == OFF else 1.5)
    result = tune(world, [OFF, TuneCandidate("ngram", "fixed(15)")])  # of which this world accepts nothing
    assert result.best.candidate == OFF


def test_each_draft_model_is_tried() -> None:
    world = World(lambda c: {"small": 1.8, "tiny": 1.2}.get(c.draft or "", 1.0))
    result = tune(world, [*grid("ngram"), *grid("model", "small"), *grid("model", "tiny")])
    assert result.best.candidate.draft == "small"
    assert any("tiny" in label for label in world.asked)


def test_what_can_not_be_replayed_runs_for_real() -> None:
    world = World(lambda c: {"head": 1.8, "suffix": 1.2}.get(c.drafter, 1.0))

    def replay(candidate: TuneCandidate, prompt: Prompt, answer: Answer) -> Stats | None:
        stats = Stats(num_tokens=48, num_drafted=40)
        stats.total_s = 0.5 if candidate.drafter == "suffix" else 1.0
        return None if candidate.drafter == "head" else stats

    result = tune(world, [*of_drafters("ngram", "suffix"), *grid("head", None, [2, 4])], replay=replay)
    assert result.best.candidate.drafter == "head"
    assert not any(label.startswith("ngram") for label in world.asked)


def test_lengths_that_could_never_pay_are_not_tried() -> None:
    assert hopeless(TuneCandidate("ngram", "fixed(3)"), [RowCost(4, 1.0, 5.0)])
    assert not hopeless(TuneCandidate("ngram", "auto"), STEEP)
    assert not hopeless(TuneCandidate("ngram", "fixed(3)"), FLAT)


def test_an_interrupt_keeps_the_best_so_far() -> None:
    result = tune(World(peaked("suffix", 6), stop_after=60), of_drafters("ngram", "suffix"))
    assert not result.complete
    assert result.best.speedup > 1.5


def test_an_error_keeps_the_scores_so_far_and_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    world = World(peaked("suffix", 6), stop_after=60, stop_with=ZeroDivisionError("of all things"))
    result = tune(world, of_drafters("ngram", "suffix"))
    assert result.best.speedup > 1.5
    with pytest.raises(SlipstreamError, match="ZeroDivisionError: of all things"):
        _finish(result, FileSettings("m"), tmp_path / "slipstream.yaml", as_json=True)
    assert json.loads(capsys.readouterr().out)["best"]["speedup"] == result.best.speedup
    assert not (tmp_path / "slipstream.yaml").exists()


def test_an_error_before_anything_was_measured_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        tune(World(peaked("suffix", 6), stop_after=1, stop_with=ZeroDivisionError), of_drafters("ngram", "suffix"))


def test_ctrl_c_before_anything_was_measured_chooses_nothing() -> None:
    with pytest.raises(KeyboardInterrupt):
        tune(World(peaked("suffix", 6), stop_after=1), of_drafters("ngram", "suffix"))


def test_the_rule_of_thumb_is_walked_over_the_same_measurements() -> None:
    result = tune(World(peaked("suffix", 6)), of_drafters("suffix"))
    rule = result.rule_of_thumb()
    assert rule is not None
    assert rule.candidate.length is not None
    assert rule.speedup <= result.best.speedup * 1.05
