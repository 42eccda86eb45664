"""The benchmark tells honest from broken: one timing method, counts that add up, verdicts that name the cause."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

import slipstream
from slipstream.core.generator import Answer
from slipstream.core.protocols import ScoreRequest, prefill
from slipstream.core.sampling import Sampling
from slipstream.core.stats import Stats
from slipstream.core.stream import Limits
from slipstream.core.tree import ROOT
from slipstream.errors import UsageError
from slipstream.loading import LoadedModel
from slipstream.measurement.engine_generator import EngineGenerator
from slipstream.measurement.intervals import median_interval
from slipstream.measurement.measure import BenchDescription, measure
from slipstream.measurement.results import ALL_KINDS, PLAIN, SCHEMA, RowCost, read_result
from slipstream.measurement.row_cost import measure_row_cost
from slipstream.measurement.runner import BenchSettings, run_bench
from slipstream.measurement.summary import Yardstick, summarise
from slipstream.measurement.synthetic import SyntheticSettings, forced_acceptance
from slipstream.measurement.workload import Prompt

SETTINGS = BenchSettings(limits=Limits(24, ignore_eos=True), passes=2)
YARDSTICK = Yardstick(weight_bytes=1000, cost_by_rows=[RowCost(1, 1.0, 1.0), RowCost(4, 1.2, 1.2)])


def quiet(done: int, total: int, what: str) -> None:
    pass


def generator(tiny: LoadedModel, drafter: str, **options) -> EngineGenerator:
    return EngineGenerator(drafter, lambda: slipstream.load(tiny, drafter=drafter), **options)


class OneByOne:
    """The loop people write first: it asks the target once for every drafted token. Test-only."""

    label = "one by one"

    def __init__(self, target: LoadedModel, num_drafted: int = 3) -> None:
        self._target = target
        self._num_drafted = num_drafted

    def answer(self, prompt, sampling: Sampling, limits: Limits) -> Answer:
        model = self._target.model
        tokens = self._target.tokenizer.prompt_ids(prompt)
        start, stats = len(tokens), Stats(ttft_s=0.001, total_s=1.0)
        oracle = slipstream.load(self._target, drafter="none").generate(prompt, sampling, limits).result().tokens
        sequence = model.open(tokens, len(tokens) + limits.max_tokens)
        prefill(model, sequence, tokens[sequence.length : -1])
        while len(tokens) - start < limits.max_tokens:
            for guess in oracle[len(tokens) - start :][: self._num_drafted]:
                token = model.score([ScoreRequest(sequence, tokens[-1:])])[0].argmax(ROOT)
                sequence.commit()
                stats.target_forwards += 1
                stats.num_drafted += 1
                stats.num_accepted += token == guess
                tokens.append(token)
            stats.rounds += 1
        sequence.close()
        stats.num_tokens = len(tokens) - start
        answer = tuple(tokens[start:])
        return Answer(self._target.tokenizer.decode(answer), answer, "length", stats)

    def forget_prompts(self) -> None:
        pass

    def forget_learned(self) -> None:
        pass


def test_every_drafter_meets_every_prompt_once_a_pass(tiny: LoadedModel, prompts: list[Prompt]) -> None:
    samples, complete = run_bench([generator(tiny, "none"), generator(tiny, "ngram")], prompts, SETTINGS, quiet)
    assert complete
    met = [(s.generator, s.prompt.id, s.pass_number) for s in samples]
    assert len(met) == len(set(met)) == 2 * 2 * len(prompts)
    assert met != sorted(met)


def test_prompts_are_cold_and_learned_things_forgotten_unless_asked(tiny: LoadedModel, prompts: list[Prompt]) -> None:
    calls: list[str] = []

    class Spy(EngineGenerator):
        def forget_prompts(self) -> None:
            calls.append("prompts")
            super().forget_prompts()

        def forget_learned(self) -> None:
            calls.append("learned")
            super().forget_learned()

    spy = Spy("none", lambda: slipstream.load(tiny, drafter="none"))
    samples, _ = run_bench([spy], prompts, SETTINGS, quiet)
    assert all(a.stats.num_reused == 0 for s in samples for a in s.answers)
    assert calls.count("learned") == SETTINGS.passes
    warm = BenchSettings(limits=SETTINGS.limits, passes=2, warm_prompts=True, keep_learned=True)
    samples, _ = run_bench([spy], prompts, warm, quiet)
    assert any(a.stats.num_reused > 0 for s in samples for a in s.answers)


def test_runs_have_consistent_counts_and_plain_comes_first(tiny: LoadedModel, prompts: list[Prompt]) -> None:
    generators = [generator(tiny, "none"), generator(tiny, "ngram"), generator(tiny, "suffix")]
    samples, _ = run_bench(generators, prompts, SETTINGS, quiet)
    runs = summarise(samples, YARDSTICK)
    assert runs[0].drafter == PLAIN
    assert {r.kind for r in runs} == {"copy", "chat", "code", ALL_KINDS}
    for run in runs:
        assert run.num_tokens == 24 * run.num_prompts * run.num_passes
        assert run.num_accepted <= run.num_drafted
        assert run.speedup.low <= run.speedup.value <= run.speedup.high
        assert run.same_text
        assert abs(run.draft_share + run.score_share + run.rest_share - 1) < 1e-6
        if run.drafter == PLAIN:
            assert run.mean_accepted_length == 1.0
            assert run.speedup.value == 1.0
    total = next(r for r in runs if r.drafter == "ngram" and r.kind == ALL_KINDS)
    assert total.num_tokens == sum(r.num_tokens for r in runs if r.drafter == "ngram" and r.kind != ALL_KINDS)


def test_a_verifier_that_goes_one_by_one_is_caught_and_named(tiny: LoadedModel, prompts: list[Prompt]) -> None:
    samples, _ = run_bench([generator(tiny, "none"), OneByOne(tiny)], prompts[:2], SETTINGS, quiet)
    run = next(r for r in summarise(samples, YARDSTICK) if r.drafter == "one by one")
    assert run.num_accepted > 0
    assert run.verdict.word == "broken"
    assert "the target ran 96 times for 96 tokens" in run.verdict.why
    assert "one token at a time" in run.verdict.why


def test_interrupted_benchmarks_keep_what_they_have_and_say_so(tiny: LoadedModel, prompts: list[Prompt]) -> None:
    def interrupt(done: int, total: int, what: str) -> None:
        if done == 3:
            raise KeyboardInterrupt

    generators = [generator(tiny, "none"), generator(tiny, "ngram")]
    result = measure(tiny.model, generators, prompts, SETTINGS, BenchDescription({}, "test"), interrupt)
    assert result.partial
    assert sum(r.num_tokens for r in result.runs if r.kind != ALL_KINDS) == 3 * 24


def test_json_is_complete_and_read_back(tiny: LoadedModel, prompts: list[Prompt], tmp_path) -> None:
    generators = [generator(tiny, "none"), generator(tiny, "ngram")]
    description = BenchDescription({"model_spec": "tiny"}, "slipstream bench")
    result = measure(tiny.model, generators, prompts, SETTINGS, description, quiet)
    path = tmp_path / "result.json"
    path.write_text(json.dumps(result.to_dict()))
    data = read_result(path)
    assert data["schema"] == SCHEMA
    for key in ("machine", "settings", "runs", "verdict"):
        assert data[key]
    run = data["runs"][-1]
    for key in ("drafter", "kind", "tokens_per_s", "acceptance_rate", "mean_accepted_length", "target_forwards"):
        assert key in run
    assert {"low", "high", "value"} <= set(run["speedup"])
    assert data["machine"]["copy_gb_per_s"] > 0


@pytest.mark.parametrize("content", ["", "[]", "{}", json.dumps({"schema": "other/9"})])
def test_what_is_no_result_is_refused(content: str, tmp_path) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=r"x\.json"):
        read_result(path)


def test_forced_acceptance_takes_the_share_it_was_told(tiny: LoadedModel, prompts: list[Prompt]) -> None:
    forced = EngineGenerator(
        "ngram", lambda: slipstream.load(tiny, drafter="ngram", policy="fixed(1)"), forced_acceptance(0.7)
    )
    stats = forced.answer("abcabc" * 4, Sampling(), Limits(1500, ignore_eos=True)).stats
    assert stats.num_drafted > 300
    assert abs(stats.acceptance_rate - 0.7) < 0.06


@pytest.mark.parametrize(
    ("shape", "draft", "rate"), [(None, "llama-1b", None), (None, None, 1.5), ("tiny", None, -0.1)]
)
def test_synthetic_settings_that_make_no_sense_are_refused(shape, draft, rate) -> None:
    with pytest.raises(UsageError):
        SyntheticSettings.checked(shape, draft, rate)


def test_row_cost_starts_at_one_and_leaves_nothing_open(tiny: LoadedModel) -> None:
    costs = measure_row_cost(tiny.model, rows=(1, 4, 16), context=32, repeats=3)
    assert [c.rows for c in costs] == [1, 4, 16]
    assert costs[0].over_one == 1.0
    assert tiny.model.num_open == 0


def test_median_interval_of_steady_samples_is_narrow_and_of_noisy_ones_wide() -> None:
    steady, noisy = median_interval([1.0, 1.01, 0.99] * 5), median_interval([0.5, 1.0, 2.0] * 5)
    assert steady.low <= steady.value <= steady.high
    assert steady.high - steady.low < 0.05 < noisy.high - noisy.low


def test_few_samples_claim_little() -> None:
    assert median_interval([]).value == 0.0
    one, two = median_interval([2.0]), median_interval([2.0, 2.2])
    assert one.low < 1.85 < 2.15 < one.high
    assert two.low < 1.85 < 2.35 < two.high


def test_a_sample_without_plain_decoding_has_no_speedup_to_show(tiny: LoadedModel, prompts: Sequence[Prompt]) -> None:
    samples, _ = run_bench([generator(tiny, "ngram")], prompts, SETTINGS, quiet)
    assert all(run.speedup.value == 1.0 for run in summarise(samples, YARDSTICK))
