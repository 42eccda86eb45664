"""Worlds by the name of a backend. Nothing is imported for backends that are not asked for."""

from __future__ import annotations

import random
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from fuzz.world import World

BACKENDS = ("fake", "torch", "cuda", "llamacpp")


class Worlds(Protocol):
    backend: str

    def world(self, rng: random.Random) -> World:
        """The world of one case: the same for the same state of `rng`, and as good as new."""
        ...

    def discard(self) -> None:
        """Forgets loaded models: a case has failed, and they may be damaged."""
        ...


def make_worlds(backend: str, folder: Path | None = None) -> Worlds:
    """`folder` is where model files are kept for reuse by other processes."""
    if backend == "fake":
        from fuzz.fake_worlds import FakeWorlds

        return FakeWorlds()
    if backend == "llamacpp":
        from fuzz.llamacpp_worlds import LlamaCppWorlds

        return LlamaCppWorlds(folder)
    from fuzz.torch_worlds import TorchWorlds

    return TorchWorlds(backend, folder)


def why_missing(backend: str) -> str | None:
    """Why a backend cannot be tested on this machine; None where it can."""
    if backend not in BACKENDS:
        return f"unknown backend {backend!r}; expected one of {', '.join(BACKENDS)}"
    if backend == "llamacpp" and find_spec("llama_cpp") is None:
        return "llama-cpp-python is not installed"
    if backend == "cuda":
        import torch

        if not torch.cuda.is_available():
            return "there is no CUDA device"
    return None
