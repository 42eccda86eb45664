"""Quantised files with damaged blocks: findings before they are loaded, and no crash when they run."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from contract import tiny_models
from slipstream.model_files.weights import check_files
from slipstream.models.gguf.header import read_header

KINDS = {"Q4_0": 18, "Q4_1": 20, "Q5_1": 24, "Q8_0": 34}
BLOCK = 32
TENSOR = "blk.1.ffn_down.weight"


def with_scales(path: Path, kind: str, value: float) -> Path:
    """The scale of every block of a tensor replaced."""
    info = read_header(path).tensors[TENSOR]
    size = KINDS[kind]
    data = np.frombuffer(path.read_bytes(), np.uint8).copy()
    blocks = data[info.offset :][: info.shape[0] * info.shape[1] // BLOCK * size].reshape(-1, size)
    blocks[:, :2] = np.array([value], np.float16).view(np.uint8)
    damaged = path.with_name("damaged.gguf")
    damaged.write_bytes(data.tobytes())
    return damaged


@pytest.mark.parametrize("kind", KINDS)
def test_scales_that_are_no_numbers_are_found_and_named(kind: str, tmp_path: Path) -> None:
    path = with_scales(tiny_models.save_quantised("llama", kind, tmp_path), kind, float("nan"))
    assert "weights-nonfinite" in {finding.id for finding in check_files(path)}
    model = tiny_models.load_native(path)
    row = tiny_models.last_row(model, [3, 4, 5])
    assert np.isnan(row).any()
    assert "model.layers.1.mlp.down_proj" in model.diagnose()


@pytest.mark.parametrize("kind", KINDS)
def test_huge_scales_run_to_the_end(kind: str, tmp_path: Path) -> None:
    path = with_scales(tiny_models.save_quantised("llama", kind, tmp_path), kind, 65504.0)
    model = tiny_models.load_native(path)
    row = tiny_models.last_row(model, [3, 4, 5])
    assert np.isfinite(row).all() or "overflowed in int8" in model.diagnose()


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_without_its_last_block_is_cut(kind: str, tmp_path: Path) -> None:
    path = tiny_models.save_quantised("qwen2", kind, tmp_path)
    header = read_header(path)
    last = max(header.tensors.values(), key=lambda info: info.offset)
    sizes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(last.type_id)]
    end = last.offset + int(np.prod(last.shape)) // sizes[0] * sizes[1]
    cut = path.with_name("cut.gguf")
    cut.write_bytes(path.read_bytes()[: end - sizes[1]])
    assert "weights-truncated" in {finding.id for finding in check_files(cut)}
