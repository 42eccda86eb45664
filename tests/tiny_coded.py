"""Tiny Llama folders quantised with GPTQ, AWQ and compressed-tensors. Codes are packed by the formats' definitions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from unit.models import model_files

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the output in each place of a word
PLAIN_ORDER = tuple(range(8))
WEIGHTS = "model.safetensors"
SCALE = 0.4  # of weights, so that logits are far from uniform


@dataclass(frozen=True)
class Case:
    method: str  # gptq, gptq_v2, awq, packed, int8
    bits: int = 4
    group: int = 32  # -1: a whole row
    symmetric: bool = False
    scales: torch.dtype = torch.float16

    @property
    def middle(self) -> int:
        return 1 << (self.bits - 1)

    @property
    def config(self) -> dict[str, object]:
        if self.method in ("gptq", "gptq_v2"):
            own = {"quant_method": "gptq", "desc_act": False, "sym": self.symmetric, "checkpoint_format": self.method}
            return own | {"bits": self.bits, "group_size": self.group}
        if self.method == "awq":
            return {"quant_method": "awq", "bits": 4, "group_size": self.group, "version": "gemm", "zero_point": True}
        grouping = {"strategy": "channel"} if self.group == -1 else {"strategy": "group", "group_size": self.group}
        weights = {"num_bits": self.bits, "type": "int", "symmetric": self.symmetric, **grouping}
        return {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized" if self.method == "packed" else "int-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}},
            "ignore": ["lm_head"],
        }


CASES = {
    "gptq symmetric": Case("gptq", symmetric=True),
    "gptq": Case("gptq", group=64),
    "gptq v2": Case("gptq_v2", group=64),
    "gptq symmetric of 8 bits": Case("gptq", 8, -1, symmetric=True),
    "gptq of 8 bits": Case("gptq_v2", 8, 64),
    "gptq v1 of 8 bits": Case("gptq", 8, 32, scales=torch.bfloat16),
    "awq": Case("awq", group=64),
    "awq by row": Case("awq", group=-1, scales=torch.bfloat16),
    "packed symmetric": Case("packed", symmetric=True, scales=torch.bfloat16),
    "packed": Case("packed", group=64),
    "packed by row": Case("packed", group=-1, symmetric=True),
    "packed with float32 scales": Case("packed", scales=torch.float32),
    "packed of 8 bits": Case("packed", 8, symmetric=True),
    "int8 by row": Case("int8", 8, -1, symmetric=True, scales=torch.bfloat16),
    "int8": Case("int8", 8, 64, scales=torch.bfloat16),
}


@dataclass(frozen=True)
class Product:
    """Unsigned codes and zero points, with every value among them; [outputs, inputs] and [outputs, groups]."""

    codes: np.ndarray
    zeros: np.ndarray
    scales: torch.Tensor

    @property
    def weight(self) -> torch.Tensor:
        """In float32, rounded at most once."""
        each = self.codes.shape[1] // self.zeros.shape[1]
        whole = self.codes - np.repeat(self.zeros, each, axis=1)
        doubles = whole * np.repeat(self.scales.double().numpy(), each, axis=1)
        return torch.from_numpy(doubles).float()


def random_product(case: Case, shape: tuple[int, int], rng: np.random.Generator) -> Product:
    outputs, inputs = shape
    groups = 1 if case.group == -1 else inputs // case.group
    codes = rng.integers(1 << case.bits, size=shape)
    codes[0, : 1 << min(case.bits, 4)] = range(1 << min(case.bits, 4))
    zeros = np.full((outputs, groups), case.middle)
    if not case.symmetric:
        count = 1 << case.bits
        zeros = (zeros + rng.integers(-2, 3, size=zeros.shape)) % count
        zeros[:16, 0] = np.linspace(0, count - 1, 16).astype(int)
    scales = torch.from_numpy(rng.uniform(0.5, 1.5, (outputs, groups)) * SCALE / (1 << case.bits))
    return Product(codes, zeros, scales.to(case.scales))


def words(values: np.ndarray, bits: int, order: tuple[int, ...]) -> torch.Tensor:
    """Each 32 / bits values of a row as one word. [rows, values] -> [rows, words]"""
    per_word = 32 // bits
    runs = values.astype(np.uint64).reshape(len(values), -1, per_word)
    found = np.zeros(runs.shape[:2], np.uint64)
    for place in range(per_word):
        found |= runs[:, :, order[place]] << np.uint64(place * bits)
    return torch.from_numpy(found.astype(np.uint32).view(np.int32))


def stored(case: Case, product: Product) -> dict[str, torch.Tensor]:
    """By what follows the name of the product."""
    codes, zeros, bits = product.codes, product.zeros, case.bits
    outputs, inputs = codes.shape
    if case.method in ("gptq", "gptq_v2"):
        kept = zeros if case.method == "gptq_v2" else (zeros - 1) % (1 << bits)
        order = torch.arange(inputs, dtype=torch.int32) // (inputs // zeros.shape[1])
        qweight = words(codes, bits, PLAIN_ORDER).T
        return {
            "qweight": qweight, "qzeros": words(kept.T, bits, PLAIN_ORDER), "scales": product.scales.T, "g_idx": order
        }  # fmt: skip
    if case.method == "awq":
        return {
            "qweight": words(codes.T, 4, AWQ_ORDER), "qzeros": words(zeros.T, 4, AWQ_ORDER), "scales": product.scales.T
        }  # fmt: skip
    if case.method == "packed":
        own = {"weight_packed": words(codes, bits, PLAIN_ORDER), "weight_shape": torch.tensor([outputs, inputs])}
        own |= {} if case.symmetric else {"weight_zero_point": words(zeros.T, bits, PLAIN_ORDER).T}
    else:
        own = {"weight": torch.from_numpy((codes - 128).astype(np.int8))}
        own |= {} if case.symmetric else {"weight_zero_point": torch.from_numpy((zeros - 128).astype(np.int8))}
    return own | {"weight_scale": product.scales}


def save_both(case: Case, folder: Path) -> tuple[Path, Path, dict[str, torch.Tensor]]:
    """A quantised folder, one with the same weights in float32, and those that are codes in the first."""
    model_files.save_model(folder / "floats", "Llama", intermediate_size=128, tie_word_embeddings=False)
    rng = np.random.default_rng(0)
    floats = load_file(folder / "floats" / WEIGHTS)
    for name, tensor in floats.items():
        if "norm" not in name:
            floats[name] = torch.from_numpy(rng.normal(0, SCALE / 3, tuple(tensor.shape))).float()
    coded, unpacked = dict(floats), {}
    for name in [name for name in floats if name.endswith("proj.weight")]:
        product = random_product(case, tuple(floats[name].shape), rng)  # type: ignore[arg-type]
        del coded[name]
        coded |= {name.removesuffix("weight") + part: tensor for part, tensor in stored(case, product).items()}
        unpacked[name] = product.weight
    save_file(floats | unpacked, folder / "floats" / WEIGHTS)
    write(folder / "coded", folder / "floats", coded, {"quantization_config": case.config})
    return folder / "coded", folder / "floats", unpacked


def write(folder: Path, like: Path, tensors: Mapping[str, torch.Tensor], config: dict[str, object]) -> None:
    folder.mkdir()
    for file in like.glob("*.json"):
        (folder / file.name).write_bytes(file.read_bytes())
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS)
    edit_config(folder, **config)


def edit_config(folder: Path, **changes: object) -> None:
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | changes))
