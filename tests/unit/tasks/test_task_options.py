"""Options of tasks: what is left out comes from slipstream.yaml, and what does not fit together is refused."""

from __future__ import annotations

import pytest

from slipstream.backends import MachineOptions
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.errors import UsageError
from slipstream.tasks.options import (
    AnswerOptions,
    AuditOptions,
    ConcurrencyOptions,
    EngineOptions,
    ModelOptions,
    RunningEngineOptions,
    SamplingOptions,
    TuneOptions,
    WorkloadOptions,
    as_models,
    check_engine_options,
)
from slipstream.tasks.reporter import Reporter


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_a_file_the_built_in_model_answers():
    assert ModelOptions().resolved() == ModelOptions("smollm2-135m")
    assert as_models(None).name == as_models("smollm2-135m").name == "smollm2-135m"


def test_the_file_fills_what_is_left_out(folder):
    (folder / "slipstream.yaml").write_text(
        "model: big\ndraft: small\ndrafter: model\npolicy: fixed(3)\nbackend: torch\n"
    )
    everything = ModelOptions("big", "small", "model", "fixed(3)", "torch")
    assert ModelOptions().resolved() == ModelOptions("big").resolved() == everything
    assert everything.resolved() == everything
    assert ModelOptions("other").resolved() == ModelOptions("other")  # the file was written for another model


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        (ModelOptions(drafter="suffix"), ModelOptions("big", None, "suffix", None)),
        (ModelOptions(draft="tiny"), ModelOptions("big", "tiny", None, "fixed(3)")),
        (ModelOptions(policy="auto"), ModelOptions("big", "small", "model", "auto")),
    ],
)
def test_a_named_draft_or_drafter_leaves_the_file_s_out(folder, given, chosen):
    (folder / "slipstream.yaml").write_text("model: big\ndraft: small\ndrafter: model\npolicy: fixed(3)\n")
    assert given.resolved() == chosen


def test_a_comparison_has_the_file_s_drafter_with_its_policy_or_those_that_are_named(folder):
    assert ModelOptions().compared() == ModelOptions(policy="auto")
    (folder / "slipstream.yaml").write_text("drafter: suffix(width=3)\npolicy: fixed(6)\n")
    assert ModelOptions().compared() == ModelOptions(drafter="suffix(width=3)", policy="fixed(6)")
    named = ModelOptions(drafter="ngram,head").compared()
    assert named == named.compared() == ModelOptions(drafter="ngram,head", policy="auto")
    assert ModelOptions(drafter="ngram", policy="fixed(2)").compared().policy == "fixed(2)"


@pytest.mark.parametrize("name", ["model", "draft", "drafter", "policy", "backend"])
def test_an_empty_name_is_refused(name):
    with pytest.raises(UsageError, match=f"--{name} is empty"):
        ModelOptions(**{name: ""})


@pytest.mark.parametrize(
    ("text", "drafters"),
    [
        (None, []),
        ("ngram,suffix", ["ngram", "suffix"]),
        ("model(p_min=0.3,n_parallel=2),ngram", ["model(p_min=0.3,n_parallel=2)", "ngram"]),
        ("chained:suffix,model", ["chained:suffix,model"]),
    ],
)
def test_drafters_are_split_at_commas_outside_brackets(text, drafters):
    assert ModelOptions(drafter=text).drafters() == drafters


@pytest.mark.parametrize("text", ["", "nonsense", "ngram,nonsense"])
def test_drafters_that_are_none_are_refused(text):
    with pytest.raises(UsageError):
        ModelOptions(drafter=text).drafters()


def test_sampling_and_limits_are_made_of_their_options():
    made = SamplingOptions(temperature=0.7, top_p=0.9, logit_bias=("42=-5", "7=1.5")).sampling()
    assert made == Sampling(temperature=0.7, top_p=0.9, logit_bias={42: -5.0, 7: 1.5})
    assert AnswerOptions(8, ("\n",), ignore_eos=True).limits() == Limits(8, ("\n",), ignore_eos=True)
    with pytest.raises(UsageError, match="expected ID=BIAS"):
        SamplingOptions(logit_bias=("42",)).sampling()


def test_temperatures_and_streams_are_numbers():
    assert [s.temperature for s in AuditOptions("0,0.5").samplings()] == [0.0, 0.5]
    assert ConcurrencyOptions(streams="1,8").stream_counts() == [1, 8]
    with pytest.raises(UsageError, match="--temperatures"):
        AuditOptions("hot").samplings()
    for wrong in ("", "0", "1,x"):
        with pytest.raises(UsageError, match="--streams"):
            ConcurrencyOptions(streams=wrong).stream_counts()


def test_prompts_are_taken_evenly_over_their_kinds():
    assert len({prompt.kind for prompt in WorkloadOptions(limit=4).read()}) == 4


OWN, OTHER = EngineOptions(), EngineOptions("vllm")


@pytest.mark.parametrize(
    ("machine", "engine", "running", "option"),
    [
        (MachineOptions(), EngineOptions(program="x"), RunningEngineOptions(), "--program is for another engine"),
        (MachineOptions(), OWN, RunningEngineOptions(url="http://x"), "--url is for another engine"),
        (MachineOptions(device="cpu"), OTHER, RunningEngineOptions(), "--device is for Slipstream's own"),
        (MachineOptions(kv_type="f16"), OTHER, RunningEngineOptions(), "--kv-type is for Slipstream's own"),
        (MachineOptions(exact=True), OTHER, RunningEngineOptions(), "--exact is for Slipstream's own"),
    ],
)
def test_options_of_two_engines_are_not_mixed(machine, engine, running, option):
    with pytest.raises(UsageError, match=option):
        check_engine_options(machine, engine, running)


def test_streams_of_another_engine_are_not_taken_for_those_of_ones_own():
    several = ConcurrencyOptions(streams="1,4")
    check_engine_options(MachineOptions(), OTHER, RunningEngineOptions(), several)
    with pytest.raises(UsageError, match="--streams is for another engine"):
        check_engine_options(MachineOptions(), OWN, RunningEngineOptions(), several)


def test_options_that_fit_together_pass():
    check_engine_options(MachineOptions(context_length=512), OTHER, RunningEngineOptions(url="http://x", api_key="k"))
    check_engine_options(MachineOptions(device="cpu", exact=True), OWN, RunningEngineOptions(api_key="k"))
    with pytest.raises(UsageError, match="--random-weights"):
        check_engine_options(MachineOptions(), OTHER, RunningEngineOptions(), random_weights="llama-8b")


def test_tune_reports_the_share_of_its_time():
    seen = []

    class Noting(Reporter):
        def progress(self, done, total, what):
            seen.append((done, total, what))

    TuneOptions(seconds=60).progress(Noting())(0.5, "ngram")
    assert seen == [(30.0, 60, "ngram")]


def test_a_system_message_needs_the_template():
    with pytest.raises(UsageError, match="--raw uses no chat template, so --system has no place"):
        AnswerOptions(raw=True, system="Be brief.")
