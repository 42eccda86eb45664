"""Weights in FP8 on the CUDA path, in Triton's interpreter: the same model as with these weights in float32."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

pytest.importorskip("triton")

from contract import cuda_models, tiny_models
from slipstream.backends.torch.cuda.kernels.fp8 import pack_fp8, rounded, tile_inputs, unpacked_pieces
from slipstream.backends.torch.cuda.kernels.many_rows import ManyRows
from slipstream.backends.torch.load import _keeps_fp8
from slipstream.backends.torch.memory import fp8_bytes
from slipstream.backends.torch.model import TorchModel
from slipstream.backends.torch.ops import Linear
from slipstream.backends.torch.options import TorchOptions
from slipstream.core.protocols import ScoreRequest
from slipstream.core.tree import ROOT, DraftTree
from slipstream.errors import DamagedModelError
from slipstream.models import open_checkpoint
from slipstream.models.quantised import Fp8Tensor
from tiny_coded import WEIGHTS
from tiny_fp8 import save_fp8

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs the same kernels on the GPU")
PRODUCT = "model.layers.1.mlp.gate_proj."
TREE = DraftTree((1, 2, 3, 4, 5, 6, 7), (-1, 0, 1, 0, 3, -1, 5))


@pytest.fixture(scope="module", params=["compressed-tensors by tensor", "fbgemm"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_fp8(request.param, tmp_path_factory.mktemp("fp8"))[0]


@pytest.fixture(scope="module")
def model(folder: Path) -> TorchModel:
    return cuda_models.load_interpreted(folder, fp8=True)


def test_logits_are_those_of_the_same_weights_in_float32(folder: Path, model: TorchModel) -> None:
    """Scales are applied at another place, so the last bits differ. A row has the same bits among more rows."""
    rows = []
    for own in (model, tiny_models.load_reference(folder)):
        place = own.open([], 60)
        (few,) = own.score([ScoreRequest(place, [9, 5], TREE)])
        rows.append([few.row(node).copy() for node in range(ROOT, len(TREE))])
        place.close()
    np.testing.assert_allclose(*map(np.stack, rows), rtol=0, atol=2e-4)
    for count in (0, 20):
        place = model.open([], 60)
        (among,) = model.score([ScoreRequest(place, [9, 5], DraftTree(tuple(range(count)), (ROOT,) * count))])
        np.testing.assert_array_equal(among.row(ROOT), rows[0][0])
        place.close()


def test_many_rows_are_multiplied_with_unpacked_weights(folder: Path) -> None:
    part = open_checkpoint(folder).fp8(f"{PRODUCT}weight")
    assert part is not None
    bias, x = torch.randn(128), torch.randn(300, 64)
    weight, many = pack_fp8([part], bias, torch.device("cpu")), ManyRows()
    floats = torch.from_numpy(open_checkpoint(folder).tensor(f"{PRODUCT}weight").data)
    expected, stream = x @ floats.T, torch.ones(300, 128)
    torch.testing.assert_close(many.linear(x, weight), expected + bias)
    torch.testing.assert_close(many.logits(x, replace(weight, bias=None)), expected)
    many.add(x, weight, stream)
    torch.testing.assert_close(stream, 1 + expected)


@pytest.mark.parametrize("inputs", [256, 192, 96])
def test_unpacked_weights_are_the_floats_of_the_file(inputs: int) -> None:
    codes = np.resize(np.delete(np.arange(256, dtype=np.uint8), [127, 255]), (48, inputs))
    scales = np.random.default_rng(0).uniform(0.001, 3, 48).astype(np.float32)
    parts = [Fp8Tensor("", codes[:16], scales[:16]), Fp8Tensor("", codes[16:], scales[16:])]
    linear = pack_fp8(parts, None, torch.device("cpu"))
    ((_, floats),) = unpacked_pieces(linear, torch.float32)
    assert (linear.outputs, linear.inputs, tile_inputs(inputs)) == (48, inputs, {256: 128, 192: 64, 96: 32}[inputs])
    assert linear.num_bytes == sum(part.num_bytes for part in parts) == 48 * inputs + 4 * 48
    expected = torch.from_numpy(codes).view(torch.float8_e4m3fn).float() * torch.from_numpy(scales)[:, None]
    assert torch.equal(floats, expected)


def test_floats_are_rounded_to_fp8_with_a_scale_for_each_output() -> None:
    weights = torch.randn(6, 96, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 6, 6)[:, None]
    weights[2] = 0
    product = rounded(Linear(weights.bfloat16(), 6, 96))
    back = torch.cat([floats for _, floats in unpacked_pieces(product, torch.float32)])
    largest = weights.abs().amax(1, keepdim=True)
    assert ((back - weights).abs() <= weights.abs() / 15 + largest / 448 / 512).all()
    assert torch.equal(back[2], torch.zeros(96))


def test_nan_is_refused_when_the_model_is_loaded(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(tmp_path / WEIGHTS)
    tensors[f"{PRODUCT}weight"].view(torch.uint8)[3, 5] = 0xFF
    save_file(tensors, tmp_path / WEIGHTS)
    with pytest.raises(DamagedModelError, match=r"gate_proj.*NaN among its weights"):
        cuda_models.load_interpreted(tmp_path, fp8=True)


def test_memory_is_planned_by_the_bytes_that_are_held(folder: Path, model: TorchModel) -> None:
    checkpoint = open_checkpoint(folder)
    decoder = model._runner._decoder  # type: ignore[attr-defined]
    held = decoder.weight_bytes() + decoder.embedding.num_bytes
    norms = 4 * (2 * decoder.config.num_layers + 1) * decoder.config.hidden_size
    assert fp8_bytes(checkpoint, 4) == held + norms


def test_what_stays_in_fp8(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    checkpoint, gpu = open_checkpoint(folder), torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert _keeps_fp8(checkpoint, TorchOptions(), gpu)
    assert not _keeps_fp8(checkpoint, TorchOptions(dtype="bf16"), gpu)
    assert not _keeps_fp8(checkpoint, TorchOptions(activations="fp"), gpu)
    assert not _keeps_fp8(open_checkpoint(save_fp8("fp8 in blocks", tmp_path)[0]), TorchOptions(), gpu)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert not _keeps_fp8(checkpoint, TorchOptions(), gpu)
