"""Products of many rows on Hopper: the bits of the Triton kernels, whatever the tiles and the company."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from slipstream.backends.torch.cuda.kernels import hopper_products
from slipstream.backends.torch.cuda.kernels.hopper_products import _OUTPUTS, HopperProducts
from slipstream.backends.torch.cuda.kernels.linear import SkinnyProducts, Tiling
from slipstream.backends.torch.ops import Hidden, Linear, Norm

DEVICE = torch.device("cuda", 0)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.get_device_capability(DEVICE) != (9, 0), reason="this GPU has no such kernels"),
]
INPUTS, OUTPUTS = 1536, 1152


class Both:
    """The same products by both."""

    def __init__(self, dtype: torch.dtype, has_bias: bool) -> None:
        torch.manual_seed(0)
        self._dtype = dtype
        self._products = SkinnyProducts(dtype, DEVICE, OUTPUTS, 2, {"hopper": HopperProducts(dtype, DEVICE)})
        self._norm = Norm(torch.rand(INPUTS, device=DEVICE) + 0.5, 1e-5)
        bias = torch.randn(OUTPUTS, device=DEVICE) if has_bias else None
        self._weight = Linear((torch.randn(OUTPUTS, INPUTS, device=DEVICE) / 30).to(dtype), OUTPUTS, INPUTS, bias)
        self._gates = Linear((torch.randn(OUTPUTS, INPUTS, device=DEVICE) / 30).to(dtype), OUTPUTS, INPUTS)

    def results(self, rows: int, tiling: Tiling) -> Iterator[torch.Tensor]:
        """By row. Numbers of a row do not depend on how many there are."""
        torch.manual_seed(1)
        x, stream = (torch.randn(256, width, device=DEVICE)[:rows].to(self._dtype) for width in (INPUTS, OUTPUTS))
        squares = torch.linspace(1e10, 2e11, 256, device=DEVICE).to(torch.int64)[:rows].repeat(2, 1)
        own = Hidden(stream.clone(), torch.empty_like(stream), squares.clone())
        self._products.add(x, self._weight, own, self._norm, tiling)
        yield from (own.x, own.scaled, own.squares.T)
        read = Hidden(x, x, squares)
        for wide in (False, True):
            yield self._products.normed(read, self._norm, self._weight, tiling, wide=wide)
        if tiling.split == 1:
            yield self._products.normed(read, self._norm, self._gates, tiling, gated=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("split", [1, 2, 4])
@pytest.mark.parametrize("outputs", [None, *_OUTPUTS], ids=str)
def test_a_row_has_the_bits_of_the_triton_kernels(
    dtype: torch.dtype, has_bias: bool, split: int, outputs: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For any number of outputs in a tile. The last tile of outputs is not full, nor is that of rows."""
    if split == 4 and outputs and outputs > 192:
        pytest.skip("their sums would not have room to meet")
    if outputs:
        monkeypatch.setattr(hopper_products, "_OUTPUTS", (outputs,))
    both, narrow = Both(dtype, has_bias), Tiling(32, 64, 6, split=split)
    many = Tiling(128, 64, 1, by="hopper").like(narrow, INPUTS, 2)
    few = list(both.results(16, narrow))
    for rows in (65, 100, 128, 130, 256):
        for ours, theirs in zip(both.results(rows, many), few, strict=True):
            assert torch.equal(ours[:16], theirs)
    whole = list(both.results(256, Tiling(64, 64, 4).like(narrow, INPUTS, 2)))
    assert all(torch.equal(a, b) for a, b in zip(both.results(256, many), whole, strict=True))


def test_a_block_has_many_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU with few multiprocessors: the ring goes on from tile to tile."""
    both, many = Both(torch.bfloat16, False), Tiling(128, 64, 1, by="hopper")
    whole = list(both.results(256, many))
    monkeypatch.setattr(both._products._others["hopper"], "_multiprocessors", 3)
    assert all(torch.equal(a, b) for a, b in zip(both.results(256, many), whole, strict=True))
