"""A draft model of the target's first layers learns, is the same model everywhere, and drafts for its target."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from tokenizers import decoders, models, pre_tokenizers

import slipstream
from contract import tiny_models
from slipstream.backends import MachineOptions
from slipstream.backends.torch.options import TorchOptions
from slipstream.errors import CapacityError, SlipstreamError, UsageError
from slipstream.models import open_checkpoint
from slipstream.models.export.folder import export_folder
from slipstream.models.tensors import expected_tensors
from slipstream.tasks.options import DoctorOptions, PairsOptions, PlanOptions
from slipstream.train.batches import Corpus, TextBatch
from slipstream.train.distillation import Distillation
from slipstream.train.draft_module import DraftModule, first_layers
from slipstream.train.draft_trainee import DraftTrainee, TrainedDraft
from slipstream.train.forward import load_target
from slipstream.train.messages import Messenger
from slipstream.train.run import TrainResult, run_training
from slipstream.train.settings import DistilOptions
from slipstream.train.shards import Role, Text

CPU = MachineOptions(device="cpu", threads=1)
LAYERS = 6


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of 64, which can be quantised, and a tokenizer with a merge, which GGUF files need."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "bos_token_id": 97, "eos_token_id": 97}
    model = tiny_models.make_model("llama2-mha", num_hidden_layers=LAYERS, **sizes)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                weight *= 0.1
        model.lm_head.weight *= 4
    folder = tiny_models.save_folder(model, tmp_path_factory.mktemp("target"))
    alphabet = [*(chr(c) for c in range(33, 127)), "Ġ", "Ċ", "th"]
    tokenizer = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, [("t", "h")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def options(target: Path, tmp_path_factory: pytest.TempPathFactory) -> DistilOptions:
    return DistilOptions(
        target=str(target), texts=tmp_path_factory.mktemp("texts"), tokens=4_000, length=48, temperatures="1",
        streams=32, shard_texts=64, layers=2, steps=40, batch_tokens=768, held_back=0.1, check_every=10, save_seconds=0,
    )  # fmt: skip


@pytest.fixture(scope="module")
def made(options: DistilOptions, tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    return run_training(options, tmp_path_factory.mktemp("made") / "draft", CPU, Messenger(), "slipstream distil")


def logits_of(module: DraftModule, tokens: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(module(tokens), module.output_weight)


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_the_module_is_the_model_that_is_saved(tiny_folders: dict[str, Path], family: str, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(tiny_folders[family])
    module = first_layers(checkpoint, 3, torch.device("cpu"), 32)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(weight.bfloat16())  # what a file holds
    tokens = torch.randint(0, 96, (2, 20), generator=torch.Generator().manual_seed(0))
    ours = logits_of(module, tokens)
    export_folder(TrainedDraft("draft", checkpoint, 3, module.state_dict()), tmp_path / "draft", "bf16")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "draft", dtype=torch.float32)
    assert model.config.num_hidden_layers == 3
    with torch.no_grad():
        torch.testing.assert_close(ours, model(tokens).logits, atol=2e-4, rtol=1e-4)
    ours.square().sum().backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in module.parameters())


def test_all_layers_have_nothing_to_learn(target: Path) -> None:
    """The whole target as its own draft: every token is right, and the loss is the target's own entropy."""
    checkpoint = open_checkpoint(target)
    whole = load_target(checkpoint, (), torch.device("cpu"), torch.float32, 64)
    drafter = Distillation(first_layers(checkpoint, LAYERS, torch.device("cpu"), 64), whole, 1)
    batch = _batch()
    outcome = drafter(batch)
    assert torch.equal(outcome.reached, outcome.begun) and outcome.begun[:, 0].tolist() == [38, 37, 36, 35, 34]
    shares = torch.nn.functional.linear(whole(batch.tokens).hidden, whole.output_weight).softmax(-1).flatten(0, 1)
    entropy = -(shares * shares.log()).sum(-1)[batch.rows + 1].sum()
    torch.testing.assert_close(outcome.losses[0], entropy, rtol=1e-4, atol=1e-4)


def _batch() -> TextBatch:
    tokens = np.random.default_rng(0).integers(3, 90, 40).astype(np.int32)
    return Corpus([Text(tokens, np.full(40, Role.ANSWER, np.uint8), "chat")], ("chat",), 0.1).batch([0])


def test_drafts_get_longer_than_those_of_the_same_layers_untrained(made: TrainResult) -> None:
    log = made.folder.with_name("draft.training") / "log.jsonl"
    checks = [r for r in map(json.loads, log.read_text().splitlines()) if "accepted_length" in r]
    assert checks[0]["step"] == 0 and made.facts["untrained_length"] == checks[0]["accepted_length"]
    assert made.is_finished and made.accepted_length > checks[0]["accepted_length"] + 0.15
    assert made.facts["optimizer"] == "AdamW"  # this is a CPU
    card = (made.folder / "README.md").read_text()
    assert "The first 2 of the 6 layers" in card and f"**{made.accepted_length:.2f}**" in card


def test_the_folder_has_the_targets_own_tokenizer(made: TrainResult, target: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (made.folder / name).read_bytes() == (target / name).read_bytes()
    assert open_checkpoint(made.folder).config == replace(open_checkpoint(target).config, num_layers=2)


def test_the_gguf_file_is_the_same_model_in_8_bits(made: TrainResult) -> None:
    folder, file = open_checkpoint(made.folder), open_checkpoint(made.folder.with_name("draft.gguf"))
    assert file.tokenizer.encode("this and that", special=True) == folder.tokenizer.encode(
        "this and that", special=True
    )
    for name in expected_tensors(folder.config):
        bits = folder.tensor(name).data.astype(np.uint32) << 16
        exact, stored = bits.view(np.float32), np.asarray(file.tensor(name).data, np.float32)
        assert np.abs(exact - stored).max() <= np.abs(exact).max() / 127


@pytest.mark.parametrize("name", ["draft", "draft.gguf"])
def test_it_drafts_for_its_target(made: TrainResult, target: Path, name: str) -> None:
    drafted = made.folder.with_name(name)
    options = TorchOptions(device="cpu", dtype="fp32", threads=1)
    engine = slipstream.load(target, draft=drafted, drafter="model", policy="fixed(4)", options=options)
    plain = slipstream.load(target, drafter="none", options=options)
    answers = [e.generate("this", temperature=1.0, seed=1, max_tokens=40).result() for e in (engine, plain)]
    assert answers[0].tokens == answers[1].tokens
    assert answers[0].stats.num_accepted > 0


def test_doctor_pairs_and_plan_take_it_as_any_draft(made: TrainResult, target: Path) -> None:
    draft = made.folder.with_name("draft.gguf")
    found = slipstream.doctor(DoctorOptions(target=str(target), draft=str(draft)))
    assert not found.is_blocked and found.prediction
    ranked = slipstream.pairs(PairsOptions(target=str(target), search=(made.folder.parent,)))
    assert str(draft.with_suffix("")) in {entry.candidate.spec for entry in ranked.usable}
    assert slipstream.plan(PlanOptions(target=str(target), draft=str(draft))).to_dict()


def test_a_run_that_broke_off_ends_with_the_same_weights(
    options: DistilOptions, made: TrainResult, tmp_path: Path
) -> None:
    class CrashError(Exception):
        pass

    def crash(line: str) -> None:
        if line.startswith("step 20:"):
            raise CrashError

    with pytest.raises(CrashError):
        run_training(options, tmp_path / "draft", CPU, Messenger(crash), "slipstream distil")
    said: list[str] = []
    again = run_training(options, tmp_path / "draft", CPU, Messenger(said.append), "slipstream distil")
    assert "going on at step 19" in said and again.accepted_length == made.accepted_length
    for name in ("draft/model.safetensors", "draft.gguf"):
        assert (tmp_path / name).read_bytes() == (made.folder.parent / name).read_bytes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": 6}, "--layers is 6, but .* has 6: expected 1 to 5"),
        ({"length": 600, "batch_tokens": 600}, "--length is 600, but .* holds 512"),
        ({"tokens": 4_001}, "other options .*--tokens was 4000, now 4001"),
        ({"layers": 3}, "other options .*--layers was 2, now 3"),
    ],
)
def test_what_can_not_be_is_refused(
    options: DistilOptions, made: TrainResult, changes: dict[str, int], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        run_training(replace(options, **changes), made.folder, CPU, Messenger())


def test_what_does_not_fit_is_refused_before_anything_is_written(options: DistilOptions, tmp_path: Path) -> None:
    with pytest.raises(CapacityError, match=r"too little memory.* or use fewer --layers"):
        run_training(replace(options, batch_tokens=1_000_000_000), tmp_path / "draft", CPU, Messenger())
    assert not any(tmp_path.iterdir())


def test_files_of_others_are_left_alone(options: DistilOptions, tmp_path: Path) -> None:
    (tmp_path / "draft.gguf").write_text("mine")
    with pytest.raises(UsageError, match=r"draft\.gguf exists, and no training of it"):
        run_training(options, tmp_path / "draft", CPU, Messenger())
    with pytest.raises(UsageError, match=r"expected a folder.* Leave out \.gguf"):
        run_training(options, tmp_path / "draft.gguf", CPU, Messenger())
    assert (tmp_path / "draft.gguf").read_text() == "mine"


def test_a_target_that_gives_no_numbers_is_named(
    target: Path, options: DistilOptions, made: TrainResult, tmp_path: Path
) -> None:
    """On the text of a run before."""
    model = transformers.AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    with torch.no_grad():
        model.model.layers[4].mlp.down_proj.weight[0, 0] = float("nan")
    model.save_pretrained(tmp_path / "broken")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "broken" / name).write_bytes((target / name).read_bytes())
    shards = tmp_path / "texts"
    shards.mkdir()
    for file in Path(str(options.texts)).iterdir():
        (shards / file.name).write_bytes(file.read_bytes())
    recipe = json.loads((shards / "recipe.json").read_text()) | {"target": str(tmp_path / "broken")}
    (shards / "recipe.json").write_text(json.dumps(recipe))
    broken = replace(options, target=str(tmp_path / "broken"), texts=shards)
    with pytest.raises(SlipstreamError, match=r"loss of .*broken is NaN or infinite before training"):
        run_training(broken, tmp_path / "draft", CPU, Messenger())


def test_a_target_that_gguf_can_not_hold_is_told_before_training(tiny_folders: dict[str, Path]) -> None:
    trainee = DraftTrainee(DistilOptions(), open_checkpoint(tiny_folders["llama2-mha"]))
    size, why = trainee.notes()
    assert "the first 1 of 6 layers" in size
    assert why.startswith("no GGUF file will be written: ") and "blocks of 32" in why
