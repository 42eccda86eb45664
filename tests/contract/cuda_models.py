"""Tiny models on the CUDA path: on a GPU where there is one, and in Triton's interpreter elsewhere."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import torch

import quick_interpreter
from contract import tiny_models
from contract.emulated_codes import EmulatedKernels
from slipstream.backends.torch import load as torch_backend
from slipstream.backends.torch.cuda.batch import DeviceRows
from slipstream.backends.torch.cuda.kernels.tilings import Tilings
from slipstream.backends.torch.cuda.ops import Fp8Ops, TritonOps
from slipstream.backends.torch.cuda.quantised_ops import QuantisedOps
from slipstream.backends.torch.cuda.runner import CudaRunner
from slipstream.backends.torch.decoder import Decoder, load_decoder
from slipstream.backends.torch.kv_pool import KVPool
from slipstream.backends.torch.model import TorchModel
from slipstream.backends.torch.options import TorchOptions
from slipstream.models import open_checkpoint

SIZES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}  # the kernels want multiples of 16
_CONTEXT = tiny_models.CONTEXT


def save(family: str, folder: Path, **changes: object) -> Path:
    return tiny_models.save_folder(tiny_models.make_model(family, **(SIZES | changes)), folder)


def load_on_gpu(folder: Path, **options: object) -> TorchModel:
    with mock.patch.object(Tilings, "measure"), mock.patch.object(Tilings, "choose_streamed"):  # any will do
        model = torch_backend.load_model(open_checkpoint(folder), TorchOptions(device="cuda", **options))
    assert model.info.backend == "torch/triton"
    return model


def load_interpreted(
    folder: Path, max_rows: int = 512, codes: bool = False, kv_dtype: torch.dtype = torch.float32, fp8: bool = False
) -> TorchModel:
    """The same kernels and the same bookkeeping on the CPU, in float32, without graphs.

    `codes`: weights stay codes. `fp8`: they stay FP8.
    """
    quick_interpreter.install()
    checkpoint, device = open_checkpoint(folder), torch.device("cpu")
    with torch.inference_mode():
        ops = (Fp8Ops if fp8 else TritonOps)(checkpoint.config, torch.float32, device, exact=True)
        if codes:
            ops = QuantisedOps(checkpoint.config, torch.float32, device, exact=True, kernels=EmulatedKernels())
        decoder = load_decoder(checkpoint, ops, device, _CONTEXT)
    pool = KVPool(checkpoint.config, 2048, kv_dtype, device)
    setup = torch_backend._Setup(checkpoint.name, device, "fp32", _CONTEXT, 2048, kv_dtype, max_rows, max_rows)

    def runner(decoder: Decoder[DeviceRows], pool: KVPool) -> CudaRunner:
        return CudaRunner(decoder, pool, max_rows, device, rounds_large_heads=True)

    return torch_backend._model(setup, decoder, pool, runner)
