"""Quantised weights as a GPU holds them, without a GPU: the layout against the file's weights, the kernels in numpy."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

pytest.importorskip("triton")

import tiny_heads
from contract import cuda_models, tiny_models
from contract.emulated_codes import EmulatedKernels, read_rows, weights_of
from cuda_on_cpu import KernelsOnCpu
from slipstream.backends.torch import load as torch_backend
from slipstream.backends.torch.cpu import library
from slipstream.backends.torch.cpu.ops import NativeOps
from slipstream.backends.torch.cuda import quantised_ops
from slipstream.backends.torch.cuda.kernels import nvrtc
from slipstream.backends.torch.cuda.kernels.quantised_kernels import Source
from slipstream.backends.torch.cuda.kernels.quantised_layout import CodedLinear, CodeLayout, pack_part, stored_bytes
from slipstream.backends.torch.cuda.quantised_ops import QuantisedOps
from slipstream.backends.torch.ops import Hidden, Norm
from slipstream.core.protocols import ScoreRequest, prefill
from slipstream.core.tree import ROOT, DraftTree
from slipstream.models import open_checkpoint
from slipstream.models.draft_heads.config import HeadConfig
from slipstream.models.draft_heads.files import open_head
from slipstream.models.gguf.blocks import BLOCK_KINDS, BlockKind
from slipstream.models.quantised import QuantFormat, QuantisedRows, QuantisedTensor, unpacked
from slipstream.models.shapes import SHAPES
from tiny_coded import CASES, save_both
from unit.backends.test_quantised_ops import name_of, quantised

CPU = torch.device("cpu")
KINDS = list(BLOCK_KINDS.values())
TREE = DraftTree((1, 2, 3), (-1, 0, -1))


def by_group(group: int, inputs: int) -> QuantisedTensor:
    """As AWQ has it: 4-bit codes, whole zero points, a float scale for each group."""
    rng = np.random.default_rng(5)
    codes = rng.integers(0, 16, (40, inputs), dtype=np.uint8)
    zeros = np.repeat(rng.integers(0, 16, (40, inputs // group)).astype(np.int8), group // 32, axis=1)
    scales = rng.uniform(0.001, 0.01, (40, inputs // group)).astype(np.float32)
    form = QuantFormat(4, "bytes", minimum="stored", super_inputs=group)

    def rows(start: int, stop: int) -> QuantisedRows:
        at = slice(start, stop)
        return QuantisedRows(codes[at], np.ones_like(zeros[at]), zeros[at], scales[at], -scales[at])

    return QuantisedTensor(form, (40, inputs), rows)


WEIGHTS = {name_of(kind): quantised(kind, 53, 512) for kind in KINDS} | {
    "groups of 128": by_group(128, 384), "groups of 64": by_group(64, 320), "whole rows": by_group(96, 96),
    "a part of a quad": quantised(BLOCK_KINDS[2], 20, 96),
}  # fmt: skip


@pytest.mark.parametrize("weight", WEIGHTS.values(), ids=WEIGHTS)
def test_the_layout_holds_the_files_weights_exactly(weight: QuantisedTensor) -> None:
    part = pack_part(weight, CPU)
    expected = unpacked(weight.format, weight.rows(0, weight.shape[0]))
    np.testing.assert_array_equal(weights_of(part), expected)
    assert part.records.nbytes == stored_bytes(weight.format, weight.shape)


@pytest.mark.parametrize("weight", WEIGHTS.values(), ids=WEIGHTS)
def test_products_are_those_of_the_cpu_but_for_the_order_of_sums(weight: QuantisedTensor) -> None:
    torch.manual_seed(0)
    x, bias, built = torch.randn(11, weight.shape[1]), torch.randn(weight.shape[0]), library.kernels()
    assert built is not None
    ops, kernels = NativeOps(built, torch.float32, takes_quantised=True), EmulatedKernels()
    expected = ops.linear(x, ops.pack(weight, bias))
    out = torch.empty(11, weight.shape[0])
    kernels.multiply(kernels.quantise(x, "plain"), CodedLinear.of([pack_part(weight, CPU)], bias), out)
    np.testing.assert_allclose(out, expected, rtol=0, atol=2e-6 * float(expected.abs().max()))


@pytest.mark.parametrize("kind", KINDS, ids=name_of)
def test_one_group_of_inputs_has_the_same_bits_as_on_the_cpu(kind: BlockKind) -> None:
    """With one quad there is one warp, and its order is that of the CPU."""
    if kind.block_inputs > 128:
        pytest.skip("its blocks have several quads")
    torch.manual_seed(1)
    weight, x, built = quantised(kind, 32, 128), torch.randn(5, 128), library.kernels()
    assert built is not None
    ops, kernels = NativeOps(built, torch.float32, takes_quantised=True), EmulatedKernels()
    out = torch.empty(5, 32)
    kernels.multiply(kernels.quantise(x, "plain"), CodedLinear.of([pack_part(weight, CPU)], None), out)
    assert torch.equal(out, ops.linear(x, ops.pack(weight)))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the kernels compiled for the CPU."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    return tmp_path_factory.mktemp("kernels")


@pytest.mark.parametrize("name", ["Q4_0", "Q8_0", "Q2_K", "Q4_K", "Q6_K", "groups of 64"])
def test_the_kernels_themselves_give_the_bits_of_the_emulation(name: str, compiled: Path) -> None:
    """quantised.cu on the CPU: for every number of rows that has a kernel, and for blocks of one and of two tiles."""
    torch.manual_seed(4)
    weight, emulated = WEIGHTS[name], EmulatedKernels()
    linear, x = CodedLinear.of([pack_part(weight, CPU)], torch.randn(weight.shape[0])), torch.randn(40, weight.shape[1])
    for rows, is_full in ((1, False), (3, True), (5, False), (8, True), (9, True), (20, True), (40, True)):
        kernels = KernelsOnCpu(compiled, is_full)
        out, expected = (torch.full((rows, weight.shape[0]), float(rows)) for _ in range(2))
        for each, to in ((kernels, out), (emulated, expected)):
            each.multiply(each.quantise(x[:rows], "plain"), linear, to, add=is_full)
        assert torch.equal(out, expected)
    ids, floats = torch.tensor([0, 19, weight.shape[0] - 1], dtype=torch.int32), unpacked_rows(weight)
    assert torch.equal(kernels.lookup(linear.parts[0], ids), floats[ids.long()])
    in_bf16 = torch.empty(weight.shape[0] - 16, weight.shape[1], dtype=torch.bfloat16)
    kernels.unpack(linear.parts[0], 16, in_bf16)
    assert torch.equal(in_bf16, floats[16:].bfloat16())


@pytest.mark.parametrize("source", ["normed", "half", "gated"])
def test_activations_become_the_codes_of_the_emulation(source: Source, compiled: Path) -> None:
    torch.manual_seed(5)
    kernels, emulated, norm = KernelsOnCpu(compiled), EmulatedKernels(), Norm(torch.rand(160), 1e-5)
    x = torch.randn(5, 320 if source == "gated" else 160)
    x = x.bfloat16() if source == "half" else x
    mine, expected = (read_rows(each.quantise(x, source, norm)) for each in (kernels, emulated))
    assert np.abs(mine[0] - expected[0]).max() <= 1  # a norm that differs in its last bit may round to the next code
    np.testing.assert_allclose(mine[1], expected[1], rtol=1e-5)
    np.testing.assert_array_equal(mine[2], mine[0].reshape(5, -1, 2, 16).sum(3))


def test_rows_that_are_no_numbers_stay_alone(compiled: Path) -> None:
    weight, x = WEIGHTS["Q4_K"], torch.randn(6, 512)
    kernels, linear = KernelsOnCpu(compiled), CodedLinear.of([pack_part(weight, CPU)], None)
    outs = []
    for bad in (0.5, float("nan"), float("inf")):
        x[2, 40] = bad
        outs.append(torch.empty(6, weight.shape[0]))
        kernels.multiply(kernels.quantise(x, "plain"), linear, outs[-1])
    others = [0, 1, 3, 4, 5]
    assert all(out[2].isnan().all() and torch.equal(out[others], outs[0][others]) for out in outs[1:])


def unpacked_rows(weight: QuantisedTensor) -> torch.Tensor:
    return torch.from_numpy(unpacked(weight.format, weight.rows(0, weight.shape[0])))


def test_neighbours_that_are_stored_alike_become_one_part() -> None:
    parts = [pack_part(quantised(BLOCK_KINDS[kind], 32, 256, kind), CPU) for kind in (12, 12, 14)]
    together = CodedLinear.of(parts, None)
    assert [part.outputs for part in together.parts] == [64, 32]
    np.testing.assert_array_equal(
        np.concatenate([weights_of(part) for part in together.parts]), np.concatenate([weights_of(p) for p in parts])
    )
    first = together.first_outputs(80)
    assert (first.outputs, [part.outputs for part in first.parts]) == (80, [64, 16])
    np.testing.assert_array_equal(weights_of(first.parts[1]), weights_of(parts[2])[:16])


def test_a_file_of_4_bits_takes_no_more_memory_than_its_size_and_a_little() -> None:
    sizes = {kind: stored_bytes(BLOCK_KINDS[kind].format, (4096, 4096)) for kind in (2, 12, 14)}
    stored = {kind: 4096 * 4096 // BLOCK_KINDS[kind].block_inputs * BLOCK_KINDS[kind].block_bytes for kind in sizes}
    assert {gguf.GGMLQuantizationType(kind).name: round(sizes[kind] / stored[kind], 2) for kind in sizes} == {
        "Q4_0": 1.0, "Q4_K": 1.06, "Q6_K": 1.01,
    }  # fmt: skip


@pytest.mark.parametrize("spec", [("qwen2", "Q4_1"), ("qwen3", "Q5_0"), "awq"], ids=str)
def test_a_model_gives_the_logits_of_the_cpu(spec: str | tuple[str, str], tmp_path: Path) -> None:
    if isinstance(spec, tuple):
        path, length = tiny_models.save_quantised(*spec, tmp_path), 20
    else:  # embedding and head are floats there, and the kernels for those take 64 rows at once
        path, length = save_both(CASES[spec], tmp_path)[0], 65
    mine, native = cuda_models.load_interpreted(path, codes=True), tiny_models.load_native(path)
    tokens = np.random.default_rng(0).integers(96, size=length).tolist()
    rows = []
    for model in (mine, native):
        place = model.open([], 200)
        prefill(model, place, tokens)
        (scores,) = model.score([ScoreRequest(place, [9], TREE)])
        rows.append(np.stack([scores.row(node) for node in range(ROOT, len(TREE))]))
    np.testing.assert_allclose(*rows, rtol=0, atol=0.02 * np.abs(rows[1]).max())
    assert mine.info.weight_bytes <= 2 * native.info.weight_bytes  # rows of 64 inputs are filled up to 128


def test_a_head_reads_its_tokens_from_a_table_of_codes(tmp_path: Path) -> None:
    path = tiny_models.save_quantised("llama", "Q8_0", tmp_path)
    config = open_checkpoint(path).config
    layer = replace(config, num_layers=1, tied_head=False)
    head = tiny_heads.save_tiny(tmp_path / "head", HeadConfig(layer, 48, (0, 1, 2), config.hidden_size))
    rows = []
    for model in (cuda_models.load_interpreted(path, codes=True), tiny_models.load_native(path)):
        drafting, place = model.attach_head(open_head(head, "head")), model.open([], 64)
        drafting.follow(place)
        model.score([ScoreRequest(place, [5, 17, 31, 2])])
        place.commit()
        rows += drafting.begin_draft([place], [7])
    np.testing.assert_allclose(*rows, rtol=0, atol=0.02 * np.abs(rows[1]).max())


def test_many_rows_are_multiplied_with_unpacked_weights_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantised_ops, "_UNPACKED_AT_ONCE", 32 * 256)
    torch.manual_seed(2)
    ops = QuantisedOps(SHAPES["tiny"], torch.float32, CPU, False, EmulatedKernels())
    parts, bias = [quantised(BLOCK_KINDS[12], 80, 256), quantised(BLOCK_KINDS[14], 37, 256)], torch.randn(117)
    hidden, x = Hidden(torch.randn(70, 117)), torch.randn(70, 256)
    floats = torch.cat([unpacked_rows(part) for part in parts])
    expected = hidden.x + x @ floats.T + bias
    ops.add(x, ops.pack(parts, bias), hidden, Norm(torch.ones(117), 1e-5))
    np.testing.assert_allclose(hidden.x, expected, rtol=0, atol=1e-4)


def test_without_a_compiler_weights_are_unpacked_and_the_reason_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing() -> None:
        raise nvrtc.NvrtcError("NVRTC is not installed")

    monkeypatch.setattr(nvrtc, "_nvrtc", missing)
    assert not torch_backend._can_compile()
    assert "NVRTC is not installed. Quantised weights are unpacked to 16 bits" in caplog.text


def gpu_code(name: str, architecture: str, defines: Mapping[str, int]) -> bytes:
    try:
        nvrtc.nvrtc_version()
    except nvrtc.NvrtcError:
        pytest.skip("needs NVRTC (pip install nvidia-cuda-nvrtc)")
    return nvrtc.compile_cubin(name, architecture, defines)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_the_kernels_compile_without_a_gpu(architecture: str) -> None:
    for defines in ({}, CodeLayout.of(BLOCK_KINDS[12].format, 256).defines):
        assert gpu_code("quantised", architecture, defines).startswith(b"\x7fELF")


@pytest.mark.parametrize("kind", range(4))
@pytest.mark.parametrize("row_tiles", [1, 2])
def test_streamed_products_compile_without_a_gpu(kind: int, row_tiles: int) -> None:
    for depth in (1, 2, 4):
        defines = {"KIND": kind, "ROW_TILES": row_tiles, "DEPTH": depth, "FLOAT16": kind % 2}
        assert gpu_code("streamed", "sm_90", defines).startswith(b"\x7fELF")


@pytest.mark.parametrize("head_dim", [64, 128])
def test_attention_of_prompts_compiles_without_a_gpu(head_dim: int) -> None:
    defines = {"HEAD_DIM": head_dim, "GROUP": 3, "STAGES": 2, "FLOAT16": head_dim // 128}
    assert gpu_code("hopper_attention", "sm_90a", defines).startswith(b"\x7fELF")
