"""Measured tilings in the cache: used while they are sound, measured again otherwise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from slipstream.backends.torch.cuda import tilings
from slipstream.backends.torch.cuda.linear import Tiling
from slipstream.backends.torch.cuda.tilings import CANDIDATES, Tilings
from slipstream.backends.torch.ops import Linear

WEIGHT = Linear(torch.zeros(64, 32), 64, 32)
BEST = CANDIDATES["gate"][2]
measured: list[Tiling] = []


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def seconds(run: object, weights: object, tiling: Tiling) -> float:
        measured.append(tiling)
        return 0.5 if tiling == BEST else 1.0

    measured.clear()
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
    monkeypatch.setattr(tilings, "_seconds", seconds)
    return tmp_path / "tilings" / f"Some-GPU-triton-{tilings.triton.__version__}.json"


def chosen() -> Tiling:
    new = Tilings(torch.device("cuda"))
    new.measure("gate", [WEIGHT], 1, lambda: lambda weight, tiling: None)
    return new.of("gate", WEIGHT, 1)


def test_the_second_process_measures_nothing(store: Path) -> None:
    assert chosen() == BEST and len(measured) == len(CANDIDATES["gate"])
    assert chosen() == BEST and len(measured) == len(CANDIDATES["gate"])


KEY = "gate 64x32 float32"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe garbage",
        b'{"gate 64x32 float32": {"block_n"',
        b"[" * 100_000,
        b"[1, 2]",
        json.dumps({KEY: 7}).encode(),
        json.dumps({KEY: {"block_n": 32, "warp": 3}}).encode(),
        json.dumps({KEY: {"block_n": 1 << 40, "block_k": 0, "stages": -1, "split": 1, "tma": False}}).encode(),
    ],
)
def test_a_damaged_file_is_measured_again(store: Path, content: bytes) -> None:
    store.parent.mkdir()
    store.write_bytes(content)
    assert chosen() == BEST and measured
    measured.clear()
    assert chosen() == BEST and not measured


def test_a_file_that_others_can_write_is_measured_again(store: Path) -> None:
    chosen()
    measured.clear()
    store.chmod(0o666)
    assert chosen() == BEST and measured


def test_a_cache_that_cannot_be_made_is_said_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "file" / "cache"))
    new = Tilings(torch.device("cuda"))
    for kind in ("gate", "add"):
        new.measure(kind, [WEIGHT], 1, lambda: lambda weight, tiling: None)
    assert new.of("gate", WEIGHT, 1) == BEST
    assert len(caplog.records) == 1 and "SLIPSTREAM_CACHE" in caplog.text


def test_what_others_measured_meanwhile_stays(store: Path) -> None:
    store.parent.mkdir()
    store.write_text(json.dumps({"other": 1}))
    store.chmod(0o644)
    chosen()
    assert set(json.loads(store.read_text())) == {"other", KEY}
