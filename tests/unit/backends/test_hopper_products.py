"""Products of many rows on Hopper: the kernel itself on a CPU, against plain torch."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

pytest.importorskip("triton")

from cuda_on_cpu import HopperOnCpu
from slipstream.backends.torch.cuda.kernels import hopper_products
from slipstream.backends.torch.cuda.kernels.hopper_products import TileShape, tile_for
from slipstream.backends.torch.cuda.kernels.products import Shares
from slipstream.backends.torch.ops import Hidden, Linear, Norm

UNIT = 2**28  # of squares
ROWS = [17, 128, 140]  # in one tile, and in two of a cluster
INPUTS = 384  # a ring is used again where it has few stages
OUTPUTS = 176  # two tiles and a part of a third


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def products(folder: Path, monkeypatch: pytest.MonkeyPatch) -> HopperOnCpu:
    """Blocks that have one tile after the other."""
    monkeypatch.setattr(hopper_products, "_OUTPUTS", (64,))
    monkeypatch.setattr(hopper_products, "_MAX_STAGES", 3)
    return HopperOnCpu(folder, multiprocessors=2)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to(torch.bfloat16)


def weight(outputs: int, inputs: int, bias: bool = False) -> Linear:
    return Linear(numbers(outputs, inputs) / 8, outputs, inputs, torch.randn(outputs) if bias else None)


def normed(x: torch.Tensor, gain: torch.Tensor, eps: float) -> tuple[Hidden, torch.Tensor]:
    """As the kernels take rows, and their norm."""
    squares = (x.float() ** 2).sum(1)
    hidden = Hidden(x, (x * gain).to(x.dtype), (squares * UNIT).to(torch.int64)[None])
    assert hidden.scaled is not None
    return hidden, hidden.scaled.float() * torch.rsqrt(squares / x.shape[1] + eps)[:, None]


def close(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    return torch.allclose(ours.float(), theirs.float(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_plain_product(products: HopperOnCpu, rows: int, parts: int, dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    w, norm = weight(OUTPUTS, INPUTS, bias=True), Norm(torch.rand(INPUTS) + 0.5, 1e-5)
    hidden, expected = normed(numbers(rows, INPUTS), norm.gain, norm.eps)
    out = torch.full((rows, OUTPUTS), float("nan"), dtype=dtype)
    products.plain(hidden, norm, w, Shares(parts, INPUTS // parts), out)
    assert close(out, expected @ w.data.float().T + w.bias)


@pytest.mark.parametrize("rows", ROWS)
def test_a_gated_product(products: HopperOnCpu, rows: int) -> None:
    torch.manual_seed(rows)
    w, norm = weight(2 * 88, INPUTS), Norm(torch.rand(INPUTS) + 0.5, 1e-5)
    hidden, expected = normed(numbers(rows, INPUTS), norm.gain, norm.eps)
    out = torch.full((rows, 88), float("nan"), dtype=torch.bfloat16)
    products.gated(hidden, norm, w, out)
    gate, up = (expected @ w.data.float().T).split(88, 1)
    assert close(out, F.silu(gate) * up)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("share", [INPUTS, INPUTS // 2, 128, 256], ids="share {}".format)
@pytest.mark.parametrize("bias", [False, True])
def test_what_is_added_to_the_residual_stream(products: HopperOnCpu, rows: int, share: int, bias: bool) -> None:
    """In one to three parts, of which the last may be short."""
    torch.manual_seed(rows)
    x, w, then = numbers(rows, INPUTS), weight(OUTPUTS, INPUTS, bias), Norm(torch.rand(OUTPUTS) + 0.5, 1e-5)
    stream = numbers(rows, OUTPUTS)
    expected = stream.float() + x.float() @ w.data.float().T + (0 if w.bias is None else w.bias)
    hidden = Hidden(stream, torch.empty_like(stream), torch.zeros(1, rows, dtype=torch.int64))
    products.add(x, w, hidden, then, Shares(-(-INPUTS // share), share))
    assert hidden.scaled is not None and hidden.squares is not None
    assert close(stream, expected) and close(hidden.scaled, stream * then.gain)
    assert torch.allclose(hidden.squares[0].double() / UNIT, (stream.double() ** 2).sum(1), rtol=1e-6)


def test_a_weight_is_described_for_each_use(products: HopperOnCpu) -> None:
    """The memory of one that is gone may be that of a gate's."""
    torch.manual_seed(0)
    w, norm = weight(OUTPUTS, INPUTS), Norm(torch.ones(INPUTS), 1e-5)
    hidden, expected = normed(numbers(17, INPUTS), norm.gain, norm.eps)
    plain, gated = torch.empty(17, OUTPUTS), torch.empty(17, OUTPUTS // 2, dtype=torch.bfloat16)
    products.plain(hidden, norm, w, Shares(1, INPUTS), plain)
    products.gated(hidden, norm, w, gated)
    gate, up = (expected @ w.data.float().T).split(OUTPUTS // 2, 1)
    assert close(plain, torch.cat((gate, up), 1)) and close(gated, F.silu(gate) * up)


@pytest.mark.parametrize("outputs", [576, 3072, 4096, 6144, 28_672, 57_344, 128_256])
@pytest.mark.parametrize("rows", [65, 128, 256])
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_a_tile_has_room(outputs: int, rows: int, parts: int) -> None:
    shape = tile_for(outputs, rows, parts, 132)
    assert shape.stages >= 4 and shape.blocks <= 4
    assert shape.stages * shape.stage_bytes <= 232_448 - 1024 - 16 * shape.stages
    assert parts * shape.outputs * 64 * 4 <= shape.stages * shape.stage_bytes or parts == 1
    assert shape.outputs // shape.row_tiles % 16 == 0


def test_a_product_of_an_8b_takes_few_turns() -> None:
    """gate-up and down of 256 rows: all multiprocessors but four have work, and none has more than others."""
    assert tile_for(28_672, 256, 1, 132) == TileShape(224, 2, 1)
    assert tile_for(4096, 256, 2, 132) == TileShape(128, 1, 2)
    assert tile_for(28_672, 256, 1, 132).turns(28_672, 256, 132) == 2
