"""Worlds of tiny random GGUF models in llama.cpp. Needs llama-cpp-python."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from contract import tiny_llamacpp
from fuzz.request import Bounds
from fuzz.torch_worlds import reading
from fuzz.world import World
from slipstream.drafters import DraftSources
from slipstream.models.gguf.file import open_gguf_file

_SPECS = (
    "same:ngram",
    "same:suffix",
    "same:suffix(width=3)",
    "same:model",
    "same:model(n_parallel=3,p_split=0.05)",
    "same:chained:suffix,model",
)


class LlamaCppWorlds:
    """Loads each architecture once. `exact`: the text is promised bit for bit only then."""

    backend = "llamacpp"

    def __init__(self, folder: Path | None = None) -> None:
        self._own = None if folder else tempfile.TemporaryDirectory()
        self._folder = folder or Path(self._own.name)  # type: ignore[union-attr]
        self._worlds: dict[str, World] = {}

    def world(self, rng: random.Random) -> World:
        architecture = rng.choice(tiny_llamacpp.ARCHITECTURES)
        if architecture not in self._worlds:
            self._worlds[architecture] = self._make(architecture)
        return self._worlds[architecture]

    def discard(self) -> None:
        for world in self._worlds.values():
            for model in world.models():
                model.close()  # type: ignore[attr-defined]
        self._worlds.clear()

    def write_models(self) -> None:
        for architecture in tiny_llamacpp.ARCHITECTURES:
            tiny_llamacpp.write(architecture, self._folder)

    def _make(self, architecture: str) -> World:
        path = self._folder / f"{architecture}.gguf"
        if not path.exists():
            self.write_models()
        target, twin, draft = (tiny_llamacpp.load_file(path, exact=True) for _ in range(3))
        tokenizer = open_gguf_file(path).tokenizer
        source = DraftSources(target, tokenizer, draft, draft_texts=tokenizer, same_vocabulary=True)
        return World(
            name=f"llamacpp {architecture}",
            target=target,
            tokenizer=tokenizer,
            logits=lambda: reading(twin),
            bounds=Bounds(target.info.vocab_size, target.info.context_length, 16, 32, "abcdefgh "),
            sources={"same": source},
            specs=_SPECS,
            engine_options={"max_streams": 8},
        )
