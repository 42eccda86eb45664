"""What `slipstream compare` calls a change, and how it exits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from slipstream.cli import compare as command
from slipstream.errors import UsageError
from slipstream.measurement.regression import Change, compare, sentence, unlike
from slipstream.measurement.results import SCHEMA


def interval(value: float, reach: float = 0.0) -> dict[str, float]:
    return {"value": value, "low": value - reach, "high": value + reach}


def run(drafter: str = "suffix", kind: str = "chat", speed: float = 20.0, **changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "drafter": drafter, "kind": kind, "num_prompts": 4, "num_passes": 3, "target_forwards": 1000,
        "num_drafted": 4000, "tokens_per_s": speed, "tokens_per_s_interval": interval(speed, 0.5),
        "speedup": interval(1.6, 0.05), "acceptance_rate": 0.5, "mean_accepted_length": 3.0, "same_text": True,
    }  # fmt: skip
    return {**fields, **changes}


def result(*runs: dict[str, Any], **changes: Any) -> dict[str, Any]:
    machine = {
        "processor": "a processor", "cores": 4, "device": "cpu", "gpus": [],
        "versions": {"slipstream": "0.1.0", "torch": "2.10"},
    }  # fmt: skip
    settings = {"model": "smollm2-135m", "seed": 0, "policy": "auto"}
    return {"schema": SCHEMA, "machine": machine, "settings": settings, "runs": list(runs), **changes}


def outcomes(changes: list[Change]) -> dict[str, str]:
    return {change.metric: change.outcome for change in changes}


def test_the_same_result_has_not_changed() -> None:
    changes = compare(result(run()), result(run()))
    assert changes == []
    assert sentence(changes) == "no change beyond noise"


@pytest.mark.parametrize(
    ("speed", "reach", "expected"),
    [
        (15.0, 0.5, {"tokens_per_s": "regression"}),
        (26.0, 0.5, {"tokens_per_s": "improvement"}),
        (15.0, 6.0, {}),  # the intervals overlap
        (19.1, 0.01, {}),  # they don't, but it is less than 5 %
        (18.9, 0.01, {"tokens_per_s": "regression"}),
        (float("nan"), 0.0, {}),
    ],
)
def test_speed_is_compared_by_its_intervals(speed: float, reach: float, expected: dict[str, str]) -> None:
    before = run(tokens_per_s_interval=interval(20.0, 0.04))
    after = run(tokens_per_s_interval=interval(speed, reach))
    assert outcomes(compare(result(before), result(after))) == expected


def test_speedup_is_compared_and_says_by_how_much() -> None:
    (change,) = compare(result(run()), result(run(speedup=interval(1.2, 0.05))))
    assert (change.metric, change.outcome) == ("speedup", "regression")
    assert change.relative == pytest.approx(-0.25)


def test_plain_decoding_is_compared_by_speed_alone() -> None:
    after = run("none", speed=10.0, acceptance_rate=0.0, mean_accepted_length=1.0)
    assert outcomes(compare(result(run("none")), result(after))) == {"tokens_per_s": "regression"}


@pytest.mark.parametrize(
    ("drafted", "rate", "expected"),
    [
        (4000, 0.40, {"acceptance_rate": "regression"}),
        (4000, 0.60, {"acceptance_rate": "improvement"}),
        (20, 0.40, {}),  # too few to tell
        (0, 0.0, {}),
    ],
)
def test_acceptance_needs_enough_drafts(drafted: int, rate: float, expected: dict[str, str]) -> None:
    before = run(num_drafted=drafted or 4000)
    after = run(num_drafted=drafted, acceptance_rate=rate)
    assert outcomes(compare(result(before), result(after))) == expected


def test_accepted_length_needs_enough_rounds() -> None:
    assert outcomes(compare(result(run()), result(run(mean_accepted_length=2.0)))) == {
        "mean_accepted_length": "regression"
    }
    few = run(target_forwards=5)
    assert compare(result(few), result(run(mean_accepted_length=2.0, target_forwards=5))) == []


def test_lower_acceptance_of_deeper_and_faster_drafts_is_a_note() -> None:
    after = run(tokens_per_s_interval=interval(25.0, 0.5), mean_accepted_length=4.0, acceptance_rate=0.4)
    changes = compare(result(run()), result(after))
    assert outcomes(changes) == {
        "tokens_per_s": "improvement", "mean_accepted_length": "improvement", "acceptance_rate": "note",
    }  # fmt: skip
    assert changes[-1].note == "fell while tokens_per_s rose"


def test_another_text_is_a_regression_and_the_same_again_an_improvement() -> None:
    good, bad = result(run()), result(run(same_text=False))
    assert outcomes(compare(good, bad)) == {"same_text": "regression"}
    assert outcomes(compare(bad, good)) == {"same_text": "improvement"}


def test_runs_that_went_and_came() -> None:
    before, after = result(run(), run(kind="maths")), result(run(), run("ngram"))
    changes = compare(before, after)
    assert [(c.drafter, c.kind, c.metric, c.outcome) for c in changes] == [
        ("suffix", "maths", "run", "regression"),
        ("ngram", "chat", "run", "note"),
    ]
    assert sentence(changes) == "1 regression, 1 note"


def test_sentence_counts() -> None:
    before = result(run(), run("ngram"), run("model"))
    after = result(run(speed=0, tokens_per_s_interval=interval(10.0)), run("ngram", same_text=False),
                   run("model", tokens_per_s_interval=interval(30.0)))  # fmt: skip
    assert sentence(compare(before, after)) == "2 regressions, 1 improvement"


def test_results_without_a_common_run_are_refused() -> None:
    with pytest.raises(UsageError, match="no run in common"):
        compare(result(run("ngram")), result(run("suffix")))


@pytest.mark.parametrize("function", [compare, unlike])
def test_a_damaged_result_is_refused(function: Any) -> None:
    damaged = {"schema": SCHEMA, "machine": {}, "settings": {}, "runs": [{"drafter": "suffix", "kind": "chat"}]}
    with pytest.raises(UsageError, match="missing or wrong field"):
        function(damaged, damaged)


def test_like_results_have_no_warnings() -> None:
    newer = result(run())
    newer["machine"]["versions"]["slipstream"] = "0.2.0"
    assert unlike(result(run()), newer) == []


def test_unlike_results_are_warned_about() -> None:
    other = result(run(num_prompts=1, num_passes=1), partial=True, synthetic=True)
    other["machine"] |= {"device": "cuda", "gpus": ["H200"], "versions": {"torch": "2.11"}}
    other["settings"] = {"model": "another", "seed": 0, "policy": "auto", "passes": 3}
    warnings = unlike(result(run()), other)
    assert warnings == [
        "machine device differs: 'cpu' and 'cuda'",
        "machine gpus differs: [] and ['H200']",
        "setting model differs: 'smollm2-135m' and 'another'",
        "setting passes differs: None and 3",
        "version torch differs: '2.10' and '2.11'",
        "the second result is partial",
        "the second result is synthetic",
        "the second result has runs that were measured only once: their noise is unknown",
    ]


def invoke(folder: Path, before: Any, after: Any, *options: str) -> Result:
    app = typer.Typer()
    app.command()(command.compare)
    paths = []
    for name, data in (("before.json", before), ("after.json", after)):
        (folder / name).write_text(data if isinstance(data, str) else json.dumps(data))
        paths.append(str(folder / name))
    return CliRunner().invoke(app, [*paths, *options])


def test_command_exits_0_without_a_regression(tmp_path: Path) -> None:
    done = invoke(tmp_path, result(run()), result(run(tokens_per_s_interval=interval(30.0))))
    assert done.exit_code == 0
    assert "1 improvement" in done.output


def test_command_exits_0_and_says_so_when_nothing_changed(tmp_path: Path) -> None:
    done = invoke(tmp_path, result(run()), result(run()))
    assert (done.exit_code, done.stdout) == (0, "no change beyond noise\n")


def test_command_exits_1_on_a_regression_and_warns(tmp_path: Path) -> None:
    after = result(run("suffix[odd]", same_text=False), settings={"model": "another"})
    done = invoke(tmp_path, result(run("suffix[odd]")), after)
    assert done.exit_code == 1
    assert "1 regression" in done.stdout
    assert "setting model differs" in done.stderr


def test_command_writes_json(tmp_path: Path) -> None:
    done = invoke(tmp_path, result(run()), result(run(speedup=interval(1.2))), "--json")
    data = json.loads(done.stdout)
    assert done.exit_code == 1
    assert (data["summary"], data["regressions"], data["improvements"]) == ("1 regression", 1, 0)
    assert data["changes"][0]["metric"] == "speedup"
    assert data["changes"][0]["relative"] == pytest.approx(-0.25)


@pytest.mark.parametrize("data", ["{", "[]", '{"schema": "other"}', json.dumps({"schema": SCHEMA})])
def test_command_refuses_what_is_no_result(tmp_path: Path, data: str) -> None:
    done = invoke(tmp_path, data, data)
    assert isinstance(done.exception, UsageError)  # main() prints it as one line
    assert done.exception.exit_code == 2
