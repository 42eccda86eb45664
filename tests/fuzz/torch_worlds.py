"""Worlds of tiny random models on the torch backend: on the CPU, or on a GPU with the same code."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from contract import tiny_models
from fuzz.garbage import freeze
from fuzz.oracle import Logits, Row
from fuzz.request import Bounds
from fuzz.world import World
from slipstream.backends.torch.kv_pool import PAGE_SIZE
from slipstream.core.protocols import KVSequence, Model, ScoreRequest
from slipstream.core.tree import ROOT
from slipstream.drafters import DraftSources
from slipstream.models import open_checkpoint

Load = Callable[..., Model]
_SPECS = (
    "same:ngram",
    "same:suffix",
    "same:suffix(width=3)",
    "same:model",
    "same:model(n_parallel=3,p_split=0.05)",
    "same:model(n_parallel=2,p_min=0.1)",
    "same:model(head=64)",
    "same:model(head=96,n_parallel=2)",
    "same:early-exit",
    "same:early-exit(p_min=0.1)",
    "same:chained:suffix,model",
    "same:chained:ngram,early-exit",
    "other:translate",
    "other:translate(min_overlap=2.0)",
)


@dataclass(frozen=True)
class Setting:
    """One kind of tiny model. `context` and `kv_tokens` are the options it is loaded with."""

    family: str
    context: int
    kv_tokens: int
    changes: tuple[tuple[str, object], ...] = ()

    @property
    def name(self) -> str:
        return "-".join([self.family, *(f"{key}={value}" for key, value in self.changes)])


SETTINGS = (
    Setting("llama2-mha", 128, 2048),
    Setting("llama3-scaled-tied", 96, 4096, (("vocab_size", 97),)),
    Setting("qwen2-bias-tied", 256, 4096, (("num_hidden_layers", 3),)),
    Setting("qwen3-qk-norm", 96, 448),  # room for two streams: the others wait
    Setting("mistral-window-8", 128, 2048, (("vocab_size", 160),)),
)


class TorchWorlds:
    """Loads each setting once and hands it to many cases. `discard` after a failure: the next case loads again."""

    def __init__(self, backend: str = "torch", folder: Path | None = None) -> None:
        """Models are written to `folder`, or to one that goes when the object does."""
        self.backend = backend
        self._own = None if folder else tempfile.TemporaryDirectory()
        self._folder = folder or Path(self._own.name)  # type: ignore[union-attr]
        self._load, self._sizes = _loader(backend)
        self._worlds: dict[str, World] = {}

    def world(self, rng: random.Random) -> World:
        setting = rng.choice(SETTINGS)
        if setting.name not in self._worlds:
            self._worlds[setting.name] = self._make(setting)
            freeze()
        return self._worlds[setting.name]

    def discard(self) -> None:
        self._worlds.clear()

    def write_models(self) -> None:
        """Writes all models, so that other processes can load them from the folder."""
        for setting in SETTINGS:
            self._saved(setting)

    def _make(self, setting: Setting) -> World:
        folder = self._saved(setting)
        options = {"context_length": setting.context, "kv_tokens": setting.kv_tokens}
        target, twin = (self._load(folder / "target", **options) for _ in range(2))
        texts = {kind: open_checkpoint(folder / kind).tokenizer for kind in ("target", "same", "other", "nan")}
        sources = {
            kind: DraftSources(
                target,
                texts["target"],
                self._load(folder / kind, **options),
                draft_texts=texts[kind],
                same_vocabulary=same,
            )
            for kind, same in (("same", True), ("other", False), ("nan", True))
        }
        vocab = target.info.vocab_size
        return World(
            name=f"{self.backend} {setting.name}",
            target=target,
            tokenizer=texts["target"],
            logits=lambda: reading(twin),
            bounds=Bounds(vocab, target.info.context_length, 24, PAGE_SIZE, "".join(map(chr, range(33, 127)))),
            sources=sources,
            specs=_SPECS,
            is_roomy=setting.kv_tokens >= 2048,
        )

    def _saved(self, setting: Setting) -> Path:
        """The target, a draft like it, a draft of another vocabulary, and a damaged draft."""
        folder = self._folder / setting.name
        if (folder / "done").exists():
            return folder
        model = tiny_models.make_model(setting.family, **self._sizes, **dict(setting.changes))
        tiny_models.save_folder(model, folder / "target")
        with torch.no_grad():
            for values in model.parameters():
                values += 0.02 * torch.randn(values.shape, generator=torch.Generator().manual_seed(1))
            tiny_models.save_folder(model, folder / "same")
            _save_reordered(model, folder / "other")
            model.get_input_embeddings().weight[3, 5] = torch.nan
            next(p for name, p in model.named_parameters() if "mlp" in name)[1, 1] = torch.nan
            tiny_models.save_folder(model, folder / "nan")
        (folder / "done").touch()
        return folder


def _loader(backend: str) -> tuple[Load, dict[str, object]]:
    if backend == "cuda":
        from contract import cuda_models

        return partial(cuda_models.load_on_gpu, dtype="fp32", exact=True), dict(cuda_models.SIZES)
    return partial(tiny_models.load_native, threads=1), {}


def _save_reordered(model: torch.nn.Module, folder: Path) -> None:
    """The same model with the letters at other ids: a draft whose ids mean something else."""
    tiny_models.save_folder(model, folder)  # type: ignore[arg-type]
    path = folder / "tokenizer.json"
    text = path.read_text()
    contents = json.loads(text)
    size = len(contents["model"]["vocab"])
    contents["model"]["vocab"] = {letter: size - 1 - i for letter, i in contents["model"]["vocab"].items()}
    path.write_text(json.dumps(contents))


@contextmanager
def reading(model: Model) -> Iterator[Logits]:
    """Logits one row at a time through a sequence of its own."""
    held: list[int] = []
    sequence: KVSequence = model.open((), model.info.context_length)

    def logits(tokens: Sequence[int]) -> Row:
        shared = next((i for i, (a, b) in enumerate(zip(tokens, held, strict=False)) if a != b), len(held))
        shared = min(shared, len(tokens) - 1)
        sequence.rewind(shared)
        del held[shared:]
        while len(held) < len(tokens):
            chunk = list(tokens[len(held) : len(held) + model.info.max_rows])
            scores = model.score([ScoreRequest(sequence, chunk)])
            sequence.commit()
            held.extend(chunk)
        return np.array(scores[0].row(ROOT))

    try:
        yield logits
    finally:
        sequence.close()
        model.forget_prompts()
