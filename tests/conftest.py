"""Settings of all tests.

Without a GPU, Triton's kernels run in its interpreter. It reads this when kernels are imported.
Tests that run beside others have one thread each: threads that wait for each other crawl on a busy machine. Hypothesis
would fail a test for the wall time of one example.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is imported

import torch

hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_finish() -> None:
    if os.environ.get("TRITON_INTERPRET") == "1" and "triton" in sys.modules:
        import quick_interpreter

        quick_interpreter.install()


@pytest.fixture(autouse=True)
def safe_path_is_put_back() -> Iterator[None]:
    """`slipstream.cli.main` sets it for the rest of its process."""
    before = os.environ.get("PYTHONSAFEPATH")
    yield
    if before is None:
        os.environ.pop("PYTHONSAFEPATH", None)
    else:
        os.environ["PYTHONSAFEPATH"] = before


@pytest.fixture
def own_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty stores and an empty cache, so that the machine's own models play no part."""
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path
