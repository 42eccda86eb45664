from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import small_models
from slipstream.catalogue.model_scan import read_candidate
from slipstream.diagnosis.examine import Case, examine
from slipstream.findings import BlockedError
from slipstream.model_files.head_checks import check_head, is_head
from slipstream.model_files.model_facts import describe
from slipstream.model_files.weights import check_weights
from slipstream.tasks.models import load_models
from slipstream.tasks.options import ModelOptions
from slipstream.tasks.plan import PlanOptions, plan
from tiny_heads import HEAD, original_values, save_original, save_tiny
from unit.models import model_files


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole model that HEAD_HERE was made for."""
    folder = tmp_path_factory.mktemp("models") / "Tiny-2M-Instruct"
    model_files.save_model(folder, "Llama", num_hidden_layers=8)
    return folder


LAYER = replace(
    HEAD.layer, vocab_size=small_models.VOCAB_SIZE, hidden_size=64, num_heads=4, num_kv_heads=2, head_dim=16
)
HEAD_HERE = replace(HEAD, layer=LAYER, target_hidden_size=64, target="example/Tiny-2M-Instruct")


@pytest.fixture
def head(tmp_path: Path) -> Path:
    return save_tiny(tmp_path / "head", HEAD_HERE)


def change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def ids(findings: list[Any]) -> list[str]:
    return [finding.id for finding in findings]


def test_a_sound_head_has_no_findings(head: Path, target: Path) -> None:
    assert check_head(head, target, context=128) == [] == check_weights(head)
    assert is_head(head) and is_head(head / "model.safetensors") and not is_head(target) and not is_head("nowhere/x")


def test_truncated(head: Path) -> None:
    data = (head / "model.safetensors").read_bytes()
    (head / "model.safetensors").write_bytes(data[:-100])
    assert ids(check_head(head)) == ["head-truncated"] == ids(check_weights(head))


def set_nan(tensors: dict[str, torch.Tensor]) -> None:
    tensors["fc.weight"][0, 0] = float("nan")


def shift_map(tensors: dict[str, torch.Tensor]) -> None:
    tensors["d2t"] += 1


@pytest.mark.parametrize(
    ("change", "id", "evidence"),
    [
        (set_nan, "head-nan", "'fc.weight'"),
        (shift_map, "head-id-map", "t2d and d2t disagree"),
        (lambda t: t.pop("norm.weight"), "head-incomplete", "'norm.weight'"),
        (lambda t: t.update(other=torch.ones(1)), "head-unsupported", "'other'"),
    ],
)
def test_wrong_weights(head: Path, change: Callable[[dict[str, torch.Tensor]], Any], id: str, evidence: str) -> None:
    change_tensors(head, change)
    (finding,) = check_head(head)
    assert (finding.id, finding.severity) == (id, "blocks") and evidence in finding.evidence
    assert ids(check_weights(head)) == [id]


def test_other_kinds_say_what_they_are(tmp_path: Path) -> None:
    save_original(tmp_path, {"medusa_num_heads": 4})
    (finding,) = check_head(tmp_path)
    assert finding.id == "head-unsupported" and finding.evidence.endswith("of the kind Medusa; EAGLE-3 is supported.")
    assert finding.fix.startswith("Use an EAGLE-3 head")


def test_pickled_weights_come_with_the_command(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(original_values()))
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK")
    (finding,) = check_weights(tmp_path)
    assert finding.id == "head-unsupported" and finding.fix.startswith("Convert them once: python -c")


def test_what_is_missing(tmp_path: Path, head: Path) -> None:
    assert ids(check_head(tmp_path / "nothing")) == ["weights-missing"]
    (head / "model.safetensors").unlink()
    assert ids(check_head(head)) == ["weights-missing"]


def test_a_head_for_another_target(tmp_path: Path, target: Path) -> None:
    (finding,) = check_head(save_tiny(tmp_path / "head"), target)
    assert finding.id == "head-other-target" and "a hidden size of 16, the target has 64" in finding.evidence
    assert "a vocabulary of 48, the target has 400" in finding.evidence and "example/target" in finding.cause


@pytest.mark.parametrize(
    ("made_for", "same"),
    [("x/Tiny-2M", True), ("tiny-2m-instruct-awq", True), ("/a/b/Tiny-2M-Instruct/", True), ("x/Other-2M", False)],
)
def test_another_name_is_a_note(tmp_path: Path, target: Path, made_for: str, same: bool) -> None:
    head = save_tiny(tmp_path / "head", replace(HEAD_HERE, target=made_for))
    assert ids(check_head(head, target)) == ([] if same else ["head-target-name"])


def test_a_longer_context_than_trained(tmp_path: Path, head: Path) -> None:
    (finding,) = check_head(head, context=16384)
    assert finding.id == "head-context" and "up to 128 tokens; the context is 16,384" in finding.evidence
    original = save_original(tmp_path / "original", original_values() | {"max_position_embeddings": 2048})
    assert check_head(original, context=2048) == []
    assert "has positions for 2,048 tokens" in check_head(original, context=16384)[0].evidence


def test_refusals_at_load_are_the_findings(tmp_path: Path, target: Path, head: Path) -> None:
    other = save_tiny(tmp_path / "other")
    with pytest.raises(BlockedError) as error:
        load_models(ModelOptions(str(target), str(other)))
    assert ids(error.value.findings) == ["head-other-target"]
    change_tensors(head, set_nan)
    with pytest.raises(BlockedError) as error:
        load_models(ModelOptions(str(target), str(head)))
    assert ids(error.value.findings) == ["head-nan"]


def test_the_doctor_checks_a_head_with_its_target(tmp_path: Path, target: Path) -> None:
    other = save_tiny(tmp_path / "other")
    found = ids(examine(Case(target=str(target), draft=str(other), context=200)).findings)
    assert {"head-other-target", "head-context"} <= set(found)
    assert not [id for id in found if id.startswith(("vocabulary", "weights"))]


def test_the_doctor_says_that_a_head_is_no_target(head: Path) -> None:
    finding = next(f for f in examine(Case(target=str(head))).findings if f.id == "head-as-target")
    assert "draft head (EAGLE-3) for example/Tiny-2M-Instruct" in finding.evidence
    assert finding.fix.endswith(f"--target example/Tiny-2M-Instruct --draft {head} --drafter head")


@pytest.mark.parametrize("save", [save_tiny, save_original])
def test_sizes_of_a_head(tmp_path: Path, save: Callable[[Path], Path]) -> None:
    facts = describe(save(tmp_path / "head"))
    assert (facts.num_layers, facts.num_kv_heads, facts.head_dim, facts.vocab_size) == (1, 1, 8, 48)
    assert facts.draft_head == "EAGLE-3" and facts.made_for == ("example/target" if save is save_tiny else None)


def test_a_plan_has_the_memory_of_a_head(target: Path, head: Path) -> None:
    made = plan(PlanOptions(target=str(target), draft=str(head), gpus="8"))
    assert made.draft is not None and made.draft.num_layers == 1
    assert made.draft.weight_bytes == (head / "model.safetensors").stat().st_size


def test_a_scan_of_models_names_a_head(head: Path) -> None:
    problem = read_candidate("x", head).problem
    assert problem == "a draft head (EAGLE-3) for example/Tiny-2M-Instruct: --draft x --drafter head"
