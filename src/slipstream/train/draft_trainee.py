"""DraftTrainee: a draft model, made of the target's own first layers, and its files."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from slipstream.errors import UnsupportedModelError, UsageError
from slipstream.models.checkpoint import Checkpoint, FloatsInMemory, RawTensor
from slipstream.models.export.config import config_json
from slipstream.models.export.folder import export_folder
from slipstream.models.gguf.quantise import check_quantisable, quantise
from slipstream.train.batches import PADDED_TO
from slipstream.train.card import draft_card
from slipstream.train.distillation import Distillation
from slipstream.train.draft_module import first_layers
from slipstream.train.forward import TargetForward
from slipstream.train.memory import TraineeSize, decoder_parameters, draft_size
from slipstream.train.saving import in_bf16, replaced
from slipstream.train.settings import DistilOptions
from slipstream.train.shards import Text

# With 2, 4 and 8 of SmolLM2's 30 layers, the same training time gave the same accepted length (1.72, 1.72, 1.67 after
# 6 s on an H200), but a drafted token reads 0.26, 0.32 and 0.42 of the target's weights.
_LAYER_SHARE = 1 / 8
_GGUF_TYPE = "q8_0"  # half of bf16's size: llama.cpp reads all of it for every drafted token
_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json",
)  # fmt: skip


class DraftTrainee:
    what = "draft model"
    feature_layers: tuple[int, ...] = ()
    steps_ahead = 0
    ids: torch.Tensor | None = None

    def __init__(self, options: DistilOptions, target: Checkpoint) -> None:
        """Raises UsageError, and UnsupportedModelError for a target of which no folder can be written."""
        count = target.config.num_layers
        if count < 2:
            raise UsageError(f"{target.name} has only {count} layer: there is no smaller model of its first layers")
        num_layers = options.layers or max(1, round(count * _LAYER_SHARE))
        if num_layers >= count:
            raise UsageError(f"--layers is {num_layers}, but {target.name} has {count}: expected 1 to {count - 1}")
        self._options = options
        self._target = target
        self._config = replace(target.config, num_layers=num_layers)
        self._why_no_gguf = _why_no_gguf(target)
        config_json(TrainedDraft("draft", target, num_layers, {}), "bfloat16")  # refuses what no folder can represent

    def notes(self) -> list[str]:
        ours, theirs = decoder_parameters(self._config), decoder_parameters(self._target.config)
        size = (
            f"the draft model has the first {self._config.num_layers} of {self._target.config.num_layers} layers: "
            f"{ours / 1e6:.0f} M parameters, {ours / theirs:.0%} of the target's"
        )
        return [size, *([f"no GGUF file will be written: {self._why_no_gguf}"] if self._why_no_gguf else [])]

    def size(self, item_bytes: int) -> TraineeSize:
        return draft_size(self._target.config, self._config, self._options, item_bytes)

    def settings(self) -> dict[str, Any]:
        return {"layers": self._config.num_layers}

    def read(self, texts: Sequence[Text], ids: torch.Tensor | None) -> str:
        return ""

    def begin(self, target: TargetForward, device: torch.device, num_kinds: int) -> Distillation:
        module = first_layers(self._target, self._config.num_layers, device, self._options.length + PADDED_TO)
        return Distillation(module, target, num_kinds)

    def facts(self) -> dict[str, Any]:
        parameters, of_target = decoder_parameters(self._config), decoder_parameters(self._target.config)
        return {
            "parameters": parameters / 1e6,
            "layers": self._config.num_layers,
            "target_layers": self._target.config.num_layers,
            "size_share": parameters / of_target,
            "gguf": None if self._why_no_gguf else _GGUF_TYPE,
        }

    def outputs(self, folder: Path) -> list[Path]:
        if folder.suffix == ".gguf":
            raise UsageError(
                f"--output {folder}; expected a folder: its GGUF file is written beside it. Leave out .gguf"
            )
        return [folder, *([] if self._why_no_gguf else [_gguf_beside(folder)])]

    def save(self, folder: Path, tensors: Mapping[str, torch.Tensor], facts: Mapping[str, Any]) -> None:
        """In bf16, and beside the folder as a GGUF file in 8 bits."""
        draft = TrainedDraft(folder.name, self._target, self._config.num_layers, tensors)
        with replaced(folder) as scratch:
            export_folder(draft, scratch)
            _copy_tokenizer(self._target.path, scratch)
            (scratch / "README.md").write_text(draft_card(facts), encoding="utf-8")
        if not self._why_no_gguf:
            with replaced(_gguf_beside(folder)) as scratch:
                quantise(draft, scratch, _GGUF_TYPE)


class TrainedDraft(FloatsInMemory):
    """Trained weights as a checkpoint; all else is the target's."""

    def __init__(self, name: str, target: Checkpoint, num_layers: int, tensors: Mapping[str, torch.Tensor]) -> None:
        self.name = name
        self.path = target.path  # where the tokenizer is
        self.config = replace(target.config, num_layers=num_layers)
        self.tokenizer = target.tokenizer
        self._tensors = tensors

    def __contains__(self, tensor_name: str) -> bool:
        return tensor_name in self._tensors

    def tensor(self, tensor_name: str) -> RawTensor:
        return in_bf16(self._tensors[tensor_name])

    def weight_bytes(self) -> int:
        return 2 * decoder_parameters(self.config)


def _gguf_beside(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.gguf")


def _why_no_gguf(target: Checkpoint) -> str | None:
    try:
        check_quantisable(target)
    except UnsupportedModelError as error:
        return str(error)
    return None


def _copy_tokenizer(target: Path, folder: Path) -> None:
    """The target's own files, where it has them: engines compare the two tokenizers."""
    for name in _TOKENIZER_FILES:
        if (target / name).is_file():
            shutil.copyfile(target / name, folder / name)
