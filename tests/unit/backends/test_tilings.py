"""Measured tilings in the cache: used while they are sound, measured again otherwise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from slipstream.backends.torch.cuda.kernels import tilings
from slipstream.backends.torch.cuda.kernels.linear import Tiling
from slipstream.backends.torch.cuda.kernels.products import Product, Products
from slipstream.backends.torch.cuda.kernels.tilings import CANDIDATES, WIDE, Tilings
from slipstream.backends.torch.ops import Linear

WEIGHT = Linear(torch.zeros(64, 32), 64, 32)
BEST = CANDIDATES["gate"][2]
measured: list[Tiling] = []


class Kernels(Products):
    """Of which only the name is asked."""

    def __init__(self) -> None:
        super().__init__(torch.bfloat16)

    def _launch(self, product: Product) -> None:
        raise AssertionError


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


@pytest.mark.parametrize("rows", [17, 64, 100, 256])
@pytest.mark.parametrize("inputs", [4096, 896, 4864, 14336])
def test_many_rows_are_summed_as_one_is(rows: int, inputs: int) -> None:
    """Else their bits would differ: the inputs are shared between as many programs, and cut in the same places."""
    weight = Linear(torch.zeros(64, inputs, dtype=torch.bfloat16), 64, inputs)
    for narrow in CANDIDATES["add"]:
        known = Tilings(torch.device("cuda"))
        known._known[tilings._key("add", weight)] = narrow
        one, many = (known.of("add", weight, n).fitted(inputs, 2, False, 64) for n in (1, rows))
        assert many.split == one.split
        assert many.inputs_of_share(inputs) == one.inputs_of_share(inputs)
        assert inputs % many.block_k == 0 and many.inputs_of_share(inputs) % many.block_k == 0


def test_a_sum_is_not_divided_where_that_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """For many rows an undivided sum is much faster, and they sum as few rows do."""
    undivided = next(c for c in CANDIDATES["add"] if c.split == 1)
    for cost, expected in ((1.04, 1), (1.2, 2)):
        monkeypatch.setattr(tilings, "_seconds", lambda run, weights, t, c=cost: c if t == undivided else t.split / 2)
        new = Tilings(torch.device("cuda"))
        new._keeps = False
        monkeypatch.setattr(new, "_remembered", dict)
        new.measure("add", [WEIGHT], 1, lambda: lambda weight, tiling: None)
        assert new.of("add", WEIGHT, 1).split == expected


def test_rows_of_a_tile_are_no_more_than_so_many() -> None:
    assert [Tiling(32, 128, 8, block_r=128).rows(n) for n in (1, 17, 64, 256)] == [16, 32, 64, 128]


def test_what_is_measured_for_many_rows_is_kept_apart() -> None:
    new = Tilings(torch.device("cuda"))
    for rows in (1, 64, 256):
        new.measure("gate", [WEIGHT], rows, lambda: lambda weight, tiling: None)
    assert new.of("gate", WEIGHT, 16) == BEST
    assert len(new._known) == 3
    assert new.of("gate", WEIGHT, 150).block_n == WIDE[256][0].block_n


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


@pytest.mark.parametrize(("outputs", "splits"), [(2048, [1, 2, 4]), (4096, [1, 2])])
def test_streamed_products_are_all_there_is_for_few_rows(
    monkeypatch: pytest.MonkeyPatch, outputs: int, splits: list[int]
) -> None:
    weight = Linear(torch.zeros(outputs, 64, dtype=torch.bfloat16), outputs, 64)
    new = Tilings(torch.device("cuda"), {"streamed": Kernels()})
    new._keeps = False
    new.measure("add", [weight], 1, lambda: lambda weight, tiling: None)
    assert [(tiling.split, tiling.by) for tiling in measured] == [(n, "streamed") for n in splits]
    assert new.of("add", weight, 1).by == "streamed" and new.of("add", weight, 64).by == "triton"
    assert new.of("add", weight, 64).in_turn
    assert new.of("logits", weight, 1).by == "triton"


@pytest.mark.parametrize(("streamed", "triton", "expected"), [(1.0, 1.1, True), (1.1, 1.0, False), (1e9, 1.0, False)])
def test_few_rows_are_streamed_where_a_step_is_not_slower_for_it(
    streamed: float, triton: float, expected: bool
) -> None:
    weight = Linear(torch.zeros(4096, 64, dtype=torch.bfloat16), 4096, 64)
    for process in range(2):
        new, asked = Tilings(torch.device("cuda"), {"streamed": Kernels()}), []

        def measure(new: Tilings = new) -> None:
            new.measure("add", [weight], 1, lambda: lambda weight, tiling: None)

        def seconds(new: Tilings = new, asked: list[bool] = asked) -> float:
            asked.append(new.of("add", weight, 1).by == "streamed")
            return streamed if new.streams else triton

        new.choose_streamed("a model", measure, seconds)
        assert new.streams == (new.of("add", weight, 1).by == "streamed") == expected
        assert asked == ([] if process else [True, False]), "the second process knows it"


def test_without_streamed_kernels_there_is_nothing_to_choose() -> None:
    new, measured_once = Tilings(torch.device("cuda")), []
    new.choose_streamed("a model", lambda: measured_once.append(True), lambda: pytest.fail("measured"))
    assert not new.streams and measured_once == [True]


def test_what_was_chosen_without_some_kernels_is_not_taken_where_they_are() -> None:
    for others, again in (({}, {}), ({"hopper": Kernels()}, {"hopper": Kernels()}), ({}, {})):
        for kernels in (others, again):
            measured.clear()
            new = Tilings(torch.device("cuda"), kernels)
            new.measure("gate", [WEIGHT], 256, lambda: lambda weight, tiling: None)
            assert any(tiling.by == "hopper" for tiling in measured) == bool(kernels and kernels is others)
