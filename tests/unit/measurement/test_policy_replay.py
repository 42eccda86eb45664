"""The policy, replayed on recorded answers against the costs of measured machines: `benchmarks/policy.py`."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fakes import AlwaysRight, AlwaysWrong, FakeModel, letters
from slipstream.loading import LoadedModel
from slipstream.measurement.workload import Prompt

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
sys.path.append(str(BENCHMARKS))

from policy_replay import overrides  # noqa: E402
from policy_replay.best_path import best_path  # noqa: E402
from policy_replay.clairvoyant import clairvoyant  # noqa: E402
from policy_replay.compare import make_policy  # noqa: E402
from policy_replay.machines import Curve, DraftCost, machines  # noqa: E402
from policy_replay.record import record_answer  # noqa: E402
from policy_replay.recording import Proposal, RecordedAnswer, Recording, read_recording, write_recording  # noqa: E402
from policy_replay.replay import Case, replay  # noqa: E402
from policy_replay.stand_ins import RecordedDrafts, draft_seconds  # noqa: E402

from slipstream.policy import AutoPolicy  # noqa: E402

# Bounds of the quick form, over plain decoding and over the stored baseline. Where the policy of the baseline is below
# the first, those cells are known: there may be no more of them, and none may get worse.
LEAST_OVER_PLAIN = 0.98
LEAST_OVER_BASELINE = 0.99
MOST_KNOWN_SLOWER = 36
LEAST_SHARE_OF_FIXED = 0.90


def run_script(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / "policy.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=280)


@pytest.fixture(scope="module")
def quick() -> dict[str, Any]:
    done = run_script("--quick", "--json")
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_the_policy_is_never_slower_than_plain_decoding_but_where_that_is_known(quick: dict[str, Any]) -> None:
    slower = quick["summary"]["slower_than_plain"]
    baseline = json.loads((BENCHMARKS / "results" / "policy-baseline.json").read_text())["quick"]
    new = {key: speed for key, speed in slower.items() if baseline[key] >= LEAST_OVER_PLAIN}
    assert not new
    assert len(slower) <= MOST_KNOWN_SLOWER


def test_the_policy_is_as_good_as_the_baseline_in_every_cell(quick: dict[str, Any]) -> None:
    assert quick["summary"]["mean_over_baseline"] >= LEAST_OVER_BASELINE
    assert not quick["summary"]["slower_than_baseline"]


def test_the_policy_gets_its_share_of_what_fixed_lengths_gain(quick: dict[str, Any]) -> None:
    assert quick["summary"]["share_of_fixed"] >= LEAST_SHARE_OF_FIXED


def test_nothing_beats_the_best_choice_with_one_stream(quick: dict[str, Any]) -> None:
    for cell in quick["cells"]:
        if cell["streams"] == 1:
            assert cell["possible"] >= max(cell["auto"], cell["best_fixed"]) - 1e-3, cell


def test_several_streams_gain_from_drafts_that_are_half_right() -> None:
    """Each round the drafter offers something, whatever became of its last draft. Fixed lengths reach 1.5x."""
    rng = random.Random(5)

    def proposal() -> Proposal:
        return Proposal(next(k for k in range(17) if rng.random() >= 0.5 or k == 16), (0.8,) * 16)

    different = [RecordedAnswer("code", 10, 129, {"suffix": tuple(proposal() for _ in range(127))}) for _ in range(8)]
    several = Case(machines()["h200-8b"], "suffix", 8, different, 16)
    assert replay(several, AutoPolicy).together >= 1.3 * replay(several, None).together


# -- the replay itself ------------------------------------------------------------------------------------------------


def answers(num_right: int, tokens: int = 21, length: int = 4) -> list[RecordedAnswer]:
    """One answer whose every proposal has so many right tokens."""
    proposals = tuple(Proposal(num_right, (0.9,) * length) for _ in range(tokens - 2))
    return [RecordedAnswer("code", 10, tokens, {"suffix": proposals, "model": proposals})]


def case(machine: str, num_right: int, drafter: str = "suffix", streams: int = 1) -> Case:
    return Case(machines()[machine], drafter, streams, answers(num_right), 2 * streams)


def test_a_recording_has_what_a_drafter_proposes_at_every_position_and_how_much_of_it_is_right() -> None:
    model = FakeModel()
    target = LoadedModel(model, letters(32))  # type: ignore[arg-type]
    drafters = {"right": AlwaysRight(is_free=False, model=model), "wrong": AlwaysWrong(model=model)}
    answer = record_answer(target, drafters, Prompt("1", "code", ("ab",), raw=True), 9, 3)
    assert answer.num_tokens == 9 and answer.num_prompt_tokens > 0
    assert [p.num_right for p in answer.proposals["right"]] == [3] * 6 + [2]
    assert [p.num_right for p in answer.proposals["wrong"]] == [0] * 7


def test_plain_rounds_cost_forward_and_host() -> None:
    machine = machines()["llamacpp-smollm2"]
    speeds = replay(case("llamacpp-smollm2", 0), None)
    assert speeds.by_answer[0] == pytest.approx(1 / (machine.forward_s(1) + machine.host(1)))
    assert speeds.together == pytest.approx(speeds.by_answer[0])


def test_a_device_that_runs_ahead_hides_the_host_after_the_first_plain_round() -> None:
    machine = machines()["h200-8b"]
    first_s, rest_s = machine.forward_s(1) + machine.host(1), machine.forward_s(1) - machine.launch_s
    assert replay(case("h200-8b", 0), None).by_answer[0] == pytest.approx(20 / (first_s + 18 * rest_s + rest_s))


def test_fixed_drafts_that_are_right_gain_their_tokens() -> None:
    machine = machines()["worst-case"]
    speeds = replay(case("worst-case", 4), partial(make_policy, "fixed(3)"))
    assert speeds.by_answer[0] == pytest.approx(1 / machine.forward_s(1))  # n tokens for the price of n rows


def test_fixed_drafts_that_are_wrong_cost_their_rows() -> None:
    speeds = replay(case("worst-case", 0), partial(make_policy, "fixed(1)"))
    assert speeds.by_answer[0] == pytest.approx(20 / (19 * 0.02 + 0.01))  # nothing is drafted for the last token


def test_many_streams_share_their_forwards() -> None:
    machine = machines()["cpu-smollm2-fp32"]
    speeds = replay(case("cpu-smollm2-fp32", 0, streams=4), None)
    assert speeds.together == pytest.approx(4 / (machine.forward_s(4) + machine.host(4)), rel=0.02)


def test_the_best_choices_are_found() -> None:
    one = case("cpu-smollm2-fp32", 4)
    fixed = [replay(one, partial(make_policy, f"fixed({n})")).by_answer[0] for n in (1, 2, 3, 4)]
    assert best_path(one).by_answer[0] >= max(fixed) - 1e-9
    many = case("h200-8b", 4, streams=4)
    plain = replay(many, None)
    assert clairvoyant(many, plain).together > 2 * plain.together


def test_a_draft_model_reads_first_and_then_takes_a_step_a_token() -> None:
    cost = DraftCost(Curve({1: 1.0, 2: 2.0}), 0.0)  # n rows take n ms
    assert draft_seconds(cost, [1], [3]) == pytest.approx(0.003)
    assert draft_seconds(cost, [2, 1], [2, 0]) == pytest.approx(0.003)  # who is not asked for is not read
    assert draft_seconds(cost, [20], [1]) == pytest.approx(0.020)
    assert draft_seconds(cost, [1], [0]) == 0.0


def test_a_drafter_that_stops_early_ends_where_it_is_unsure() -> None:
    proposal = Proposal(4, (0.9, 0.5, 0.9, 0.9))
    drafts = RecordedDrafts([RecordedAnswer("code", 10, 6, {"head": (proposal,) * 4})], "head")
    assert [len(drafts.tree(0, 1, 4, least)) for least in (0.0, 0.4, 0.44, 0.46, 0.95)] == [4, 4, 3, 2, 1]
    assert len(drafts.tree(0, 1, 1, 0.4)) == 1


def test_a_team_has_the_drafts_of_all_and_what_they_get_wrong_differs() -> None:
    right, wrong = Proposal(4, (0.9,) * 4), Proposal(0, (0.2,) * 4)
    first, then = (right,) * 30 + (wrong,) * 30, (wrong,) * 30 + (right,) * 30
    answer = RecordedAnswer("code", 10, 62, {"suffix": first, "head": then})
    machine = machines()["cpu-smollm2-head"]
    speeds = {name: replay(Case(machine, name, 1, [answer], 4), AutoPolicy).together for name in ("suffix", "head")}
    team = Case(machine, "chained:suffix,head", 1, [answer], 4)
    assert replay(team, AutoPolicy).together > 1.05 * max(speeds.values())
    assert best_path(team).by_answer[0] > replay(team, AutoPolicy).by_answer[3]
    suffix, head = (team.drafts[name].tree(0, known, 4) for name, known in (("suffix", 40), ("head", 1)))
    assert suffix.tokens != head.tokens


def test_curves_are_lines_between_sizes_and_steps_at_buckets() -> None:
    curve = Curve({1: 10.0, 3: 30.0, 4: 20.0})
    assert [curve(n) for n in (0, 1, 2, 3, 4)] == pytest.approx([0.0, 0.010, 0.020, 0.030, 0.020])
    assert Curve({1: 10.0, 2: 20.0})(5) == pytest.approx(0.05)
    assert Curve({1: 10.0, 2: 20.0}, (1, 8))(3) == pytest.approx(0.08)


def test_a_recording_survives_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("policy_replay.recording.FOLDER", tmp_path)
    recorded = Recording("some", {"model": "m"}, tuple(answers(2)))
    write_recording(tmp_path / "some.json.gz", recorded)
    assert read_recording("some") == recorded


def test_recordings_hold_no_text_and_every_drafter_that_machines_have() -> None:
    for machine in machines().values():
        recording = read_recording(machine.recording)
        for answer in recording.answers:
            assert {"suffix", *machine.drafts} <= set(answer.proposals)
        assert all(len(p) <= answer.num_tokens for answer in recording.answers for p in answer.proposals.values())


def test_constants_are_found_and_can_be_set() -> None:
    names = overrides.constants()
    assert names
    assert overrides.other_values(0.2) == (0.1, 0.4)
    assert overrides.other_values(0.98) == pytest.approx((0.99, 0.96))
    done = run_script("--quick", "--machines", "worst-case", "--streams", "1", "--set", f"{next(iter(names))}=0.5")
    assert done.returncode == 0, done.stderr
    unknown = run_script("--set", next(iter(names)).rpartition(".")[0] + ".NOTHING=1")
    assert unknown.returncode == 1
    assert "no such constant" in unknown.stderr
