"""Products with quantised weights: the arithmetic that quantised.c states, for every layout, in any company."""

from __future__ import annotations

import ctypes
import platform
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from slipstream.backends.torch.cpu import library
from slipstream.backends.torch.cpu.ops import NativeOps
from slipstream.host import c_compiler
from slipstream.models.gguf.blocks import BLOCK_KINDS, BlockKind
from slipstream.models.quantised import QuantisedTensor, unpacked
from unit.backends.native_steps import NativeSteps

KINDS = list(BLOCK_KINDS.values())
# Where the half-precision numbers of a block are: random bytes there would be infinite or far apart.
HALVES = {2: [0], 3: [0, 2], 6: [0], 7: [0, 2], 8: [0], 10: [80, 82], 11: [108], 12: [0, 2], 13: [0, 2], 14: [208],
          20: [0], 23: [0]}  # fmt: skip


def name_of(kind: BlockKind) -> str:
    return gguf.GGMLQuantizationType(kind.type_id).name


def quantised(kind: BlockKind, outputs: int, inputs: int, seed: int = 0) -> QuantisedTensor:
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (outputs * inputs // kind.block_inputs, kind.block_bytes), dtype=np.uint8)
    for at in HALVES[kind.type_id]:
        blocks[:, at : at + 2] = rng.uniform(-0.01, 0.01, len(blocks)).astype(np.float16).reshape(-1, 1).view(np.uint8)
    return kind.tensor(blocks.reshape(outputs, -1))


def floats(weight: QuantisedTensor) -> np.ndarray:
    return unpacked(weight.format, weight.rows(0, weight.shape[0]))


def rounded(x: torch.Tensor) -> np.ndarray:
    """Activations as 8-bit codes of groups of 32 stand for them."""
    groups = x.numpy().reshape(len(x), -1, 32)
    top = np.abs(groups).max(2, keepdims=True)
    codes = np.rint(groups * (np.float32(127) / top))
    return (codes.astype(np.float64) * (top / np.float32(127))).reshape(x.shape)


@pytest.fixture(scope="module")
def ops() -> NativeSteps:
    built = library.kernels()
    assert built is not None
    return NativeSteps(built, torch.float32, takes_quantised=True)


@pytest.fixture(scope="module")
def portable(tmp_path_factory: pytest.TempPathFactory) -> NativeOps:
    """The kernels as a processor without dot products runs them."""
    source = b"#define SLIP_PORTABLE\n" + library.kernel_source()
    built = library._compile(c_compiler(), source, tmp_path_factory.mktemp("portable"))
    return NativeOps(library.declared(ctypes.CDLL(str(built))), torch.float32, takes_quantised=True)


# A processor without the flags that are left out runs such kernels. All have fused multiply-adds, so bits are the same.
_X86 = ("-mno-avx512vnni", "-mno-avx512bw", "-mno-avx512f", "-mno-avx512f -mno-f16c")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="kernels of x86-64")
@pytest.mark.parametrize("left_out", _X86)
def test_vectors_of_another_processor_give_the_same_bits(ops: NativeOps, tmp_path: Path, left_out: str) -> None:
    torch.manual_seed(5)
    built = library._compile([*c_compiler(), *left_out.split()], library.kernel_source(), tmp_path)
    other = NativeOps(library.declared(ctypes.CDLL(str(built))), torch.float32, takes_quantised=True)
    x, tokens = torch.randn(9, 512), torch.tensor([0, 36, 3])
    for kind in KINDS:
        weight = quantised(kind, 37, 512)
        here, there = ops.pack(weight), other.pack(weight)
        for rows in (1, 4, 5, 9):
            assert torch.equal(other.linear(x[:rows], there), ops.linear(x[:rows], here)), name_of(kind)
        assert torch.equal(other.lookup(there, tokens), ops.lookup(here, tokens))


@pytest.mark.parametrize("kind", KINDS, ids=name_of)
@pytest.mark.parametrize("outputs", [64, 37])
def test_a_product_is_that_of_the_files_weights_and_8_bit_activations(
    ops: NativeOps, portable: NativeOps, kind: BlockKind, outputs: int
) -> None:
    torch.manual_seed(0)
    weight, x, bias = quantised(kind, outputs, 512), torch.randn(13, 512), torch.randn(outputs)
    expected = rounded(x) @ floats(weight).astype(np.float64).T + bias.numpy()
    for each in (ops, portable):
        got = each.linear(x, each.pack(weight, bias))
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("kind", KINDS, ids=name_of)
def test_a_row_has_the_same_bits_in_any_company(ops: NativeOps, kind: BlockKind) -> None:
    torch.manual_seed(1)
    weight, x = ops.pack(quantised(kind, 37, 512)), torch.randn(75, 512)
    alone = torch.cat([ops.linear(row[None], weight) for row in x])
    for rows in (2, 3, 4, 5, 6, 7, 8, 9, 16, 23, 75):
        assert torch.equal(ops.linear(x[:rows], weight), alone[:rows])
        assert torch.equal(ops.linear(x[75 - rows :].contiguous(), weight), alone[75 - rows :])


@pytest.mark.parametrize("kind", KINDS, ids=name_of)
def test_rows_of_a_table_are_the_files_weights(ops: NativeOps, portable: NativeOps, kind: BlockKind) -> None:
    weight, tokens = quantised(kind, 37, 256), torch.tensor([0, 36, 3, 4, 17, 0])
    for each in (ops, portable):
        got = each.lookup(each.pack(weight), tokens).numpy()
        np.testing.assert_array_equal(got, floats(weight)[tokens.numpy()])


def test_parts_may_be_stored_in_different_ways(ops: NativeSteps) -> None:
    torch.manual_seed(2)
    parts = [quantised(BLOCK_KINDS[12], 40, 256), torch.randn(21, 256), quantised(BLOCK_KINDS[14], 19, 256)]
    bias, x = torch.randn(80), torch.randn(5, 256)
    together = ops.linear(x, ops.pack(parts, bias))
    apart = torch.cat([ops.linear(x, ops.pack(part)) for part in parts], dim=1) + bias
    assert torch.equal(together, apart)
    residual = torch.randn(5, 80)
    added = residual.clone()
    ops.linear_add(x, ops.pack(parts, bias), added)
    assert torch.equal(added, residual + apart)


def test_the_first_outputs_share_the_memory(ops: NativeOps) -> None:
    torch.manual_seed(3)
    whole, x = ops.pack(quantised(BLOCK_KINDS[3], 64, 64)), torch.randn(3, 64)
    first = ops.first_outputs(whole, 48)
    assert torch.equal(ops.linear(x, first), ops.linear(x, whole)[:, :48])
    assert first.num_bytes == whole.num_bytes * 3 // 4


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_no_number_stays_in_its_row(ops: NativeOps, bad: float) -> None:
    torch.manual_seed(4)
    weight, x = ops.pack(quantised(BLOCK_KINDS[2], 32, 64)), torch.randn(6, 64)
    expected = ops.linear(x, weight)
    x[2, 40] = bad
    got = ops.linear(x, weight)
    assert got[2].isnan().all()
    assert torch.equal(got[[0, 1, 3, 4, 5]], expected[[0, 1, 3, 4, 5]])


def test_a_row_of_zeros_or_of_tiny_numbers_gives_finite_ones(ops: NativeOps) -> None:
    weight = ops.pack(quantised(BLOCK_KINDS[3], 32, 64))
    assert torch.equal(ops.linear(torch.zeros(2, 64), weight), torch.zeros(2, 32))
    assert ops.linear(torch.full((2, 64), 1e-42), weight).isfinite().all()


def test_the_upper_halves_of_codes_are_the_weights_but_for_half_a_step(ops: NativeOps, portable: NativeOps) -> None:
    whole = quantised(BLOCK_KINDS[8], 37, 256)
    step = 16 * np.abs(whole.rows(0, 37).scales.astype(np.float32)).repeat(32, axis=1)
    for each in (ops, portable):
        rough = each.pack(whole).rough(each._packer)
        assert rough is not None and rough.num_bytes * 1.88 < each.pack(whole).num_bytes
        errors = np.abs(each.lookup(rough, torch.arange(37)).numpy() - floats(whole))
        assert (errors <= step * 8 / 16 * 1.001).all()
    assert ops.pack(quantised(BLOCK_KINDS[2], 37, 256)).rough(ops._packer) is None
    large = ops.pack(whole)
    large.parts[0].scales[0, 0, 0] = 5000.0  # 16 times that is more than half precision holds
    assert large.rough(ops._packer) is None
