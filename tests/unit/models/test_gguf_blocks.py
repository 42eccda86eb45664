"""Quantised blocks taken apart, against the `gguf` package's own unpacking."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from slipstream.models.gguf.blocks import BLOCK_KINDS, BlockKind
from slipstream.models.quantised import unpacked

KINDS = list(BLOCK_KINDS.values())


def name_of(kind: BlockKind) -> str:
    return gguf.GGMLQuantizationType(kind.type_id).name


@pytest.mark.parametrize("kind", KINDS, ids=name_of)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # random bytes hold infinities
def test_random_blocks_unpack_as_gguf_unpacks_them(kind: BlockKind) -> None:
    """So many random bytes that every code and every scale occurs, also NaN."""
    ggml_type = gguf.GGMLQuantizationType(kind.type_id)
    assert gguf.GGML_QUANT_SIZES[ggml_type] == (kind.block_inputs, kind.block_bytes)
    rows = np.random.default_rng(kind.type_id).integers(0, 256, (64, 8 * kind.block_bytes), dtype=np.uint8)
    tensor = kind.tensor(rows)
    assert tensor.shape == (64, 8 * kind.block_inputs)
    parts = [unpacked(kind.format, tensor.rows(start, start + 16)) for start in range(0, 64, 16)]
    np.testing.assert_array_equal(np.concatenate(parts), gguf.quants.dequantize(rows, ggml_type))


@pytest.mark.parametrize("kind", KINDS, ids=name_of)
def test_codes_fit_their_bits_and_the_bytes_are_told(kind: BlockKind) -> None:
    rows = np.random.default_rng(0).integers(0, 256, (2, kind.block_bytes), dtype=np.uint8)
    tensor = kind.tensor(rows)
    got = tensor.rows(0, 2)
    if kind.format.bits == 4:
        assert got.codes.dtype == np.uint8 and got.codes.max() <= 15
    else:
        assert got.codes.dtype == np.int8
    arrays = (got.scales, got.minimums, got.supers, got.super_minimums)
    held = got.codes.size * kind.format.bits // 8 + sum(array.nbytes for array in arrays if array is not None)
    assert tensor.num_bytes == held
