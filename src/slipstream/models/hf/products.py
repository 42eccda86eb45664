"""Which tensors of a folder are the codes, scales and zero points of a product; checked before anything is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from slipstream.errors import DamagedModelError, UnsupportedModelError
from slipstream.models.config import DecoderConfig
from slipstream.models.hf.codes import WORD_BITS, CodedProduct
from slipstream.models.hf.fp8 import Fp8Product, fp8_product
from slipstream.models.hf.quantisation import CodeKind, Packing, QuantScheme
from slipstream.models.hf.safetensors_file import FLOATS, StoredTensor
from slipstream.models.quantised import GROUP
from slipstream.models.tensors import Shape, expected_tensors

Tensors = Mapping[str, StoredTensor]
Product = CodedProduct | Fp8Product
_MARKS: dict[Packing, str] = {"gptq": "qweight", "awq": "qweight", "packed": "weight_packed", "int8": "weight"}
_OPTIONAL = ("g_idx", "weight_g_idx", "weight_zero_point")
_ORDERS = ("g_idx", "weight_g_idx")
_WHOLE_NUMBERS = ("I32", "I64")


@dataclass(frozen=True, slots=True)
class PartShape:
    dtypes: tuple[str, ...]
    shape: Shape

    def check(self, tensor: StoredTensor) -> None:
        if tensor.dtype not in self.dtypes or tensor.shape != self.shape:
            raise DamagedModelError(
                f"{tensor.path}: the tensor {tensor.name!r} has the shape {tensor.shape} as {tensor.dtype}; expected "
                f"{self.shape} as {' or '.join(self.dtypes)}. Weights and config.json do not belong together, or were "
                "made in another way. Download both again."
            )


def coded_products(stored: Tensors, shapes: Mapping[str, Shape], scheme: QuantScheme) -> dict[str, Product]:
    """By name (`….weight`), of those that have `shapes`. Reads only the order of inputs. Raises ModelError subclasses
    only."""
    found: dict[str, Product] = {}
    for name, shape in shapes.items():
        if len(shape) == 2 and (product := _product(stored, name, (shape[0], shape[1]), scheme)):
            found[name] = product
    if not found:
        path = next((tensor.path for tensor in stored.values()), "")
        raise DamagedModelError(
            f"{path} has no quantised tensors, but config.json says that they are ({scheme.packing}). Use the "
            "config.json of these weights."
        )
    return found


def part_names(products: Mapping[str, Product]) -> set[str]:
    """The tensors that products are made of."""
    return {name.removesuffix("weight") + suffix for name, product in products.items() for suffix in product.parts}


def unused_biases(stored: Tensors, config: DecoderConfig, products: Mapping[str, Product]) -> set[str]:
    """Biases of zeros, which some programs write beside every quantised product."""
    names = {name.removesuffix("weight") + "bias" for name in products} - expected_tensors(config).keys()
    return {
        name for name in names if name in stored and stored[name].dtype in FLOATS and not stored[name].read().data.any()
    }


def _product(stored: Tensors, name: str, shape: tuple[int, int], scheme: QuantScheme) -> Product | None:
    """None if it is not stored as codes."""
    if scheme.packing == "fp8":
        return fp8_product(stored, name, shape, scheme.block)
    module = name.removesuffix("weight")
    mark = stored.get(module + _MARKS[scheme.packing])
    if mark is None or (scheme.packing == "int8" and mark.dtype != "I8"):
        return None
    kind = _kind(stored, module, shape, scheme)
    _check_groups(mark, shape, kind)
    parts = {}
    for suffix, expected in _part_shapes(scheme.packing, shape, kind).items():
        if tensor := stored.get(module + suffix):
            expected.check(tensor)
            parts[suffix] = tensor
        elif suffix not in _OPTIONAL:
            missing = module + suffix
            raise DamagedModelError(
                f"{mark.path}: the tensor {mark.name!r} has codes, but {missing!r} is missing. Download it again."
            )
    product = CodedProduct(name, shape, kind, scheme, parts)
    _refuse_other_order(product)
    return product


def _kind(stored: Tensors, module: str, shape: tuple[int, int], scheme: QuantScheme) -> CodeKind:
    """The one whose shapes these are; the first if there is none, so that its check says what is wrong."""

    def fits(kind: CodeKind) -> bool:
        shapes = _part_shapes(scheme.packing, shape, kind)
        found = {suffix: stored.get(module + suffix) for suffix in shapes if suffix not in _OPTIONAL}
        return all(tensor is not None and tensor.shape == shapes[suffix].shape for suffix, tensor in found.items())

    return next(filter(fits, scheme.kinds), scheme.kinds[0])


def _check_groups(mark: StoredTensor, shape: tuple[int, int], kind: CodeKind) -> None:
    group = kind.group or shape[1]
    if group % GROUP or shape[1] % group:
        raise UnsupportedModelError(
            f"{mark.path}: the product {mark.name!r} has {shape[1]} inputs in groups of {group}; groups of a multiple "
            f"of {GROUP} inputs are supported, without a rest. Use another engine for it (--engine vllm)."
        )


def _part_shapes(packing: Packing, shape: tuple[int, int], kind: CodeKind) -> dict[str, PartShape]:
    """By what follows the product's name."""
    (outputs, inputs), per_word = shape, WORD_BITS // kind.bits
    groups, words = kind.groups(inputs), -(-outputs // per_word)
    scales = tuple(name for name in FLOATS if name != "F64")
    order = PartShape(_WHOLE_NUMBERS, (inputs,))
    if packing in ("gptq", "awq"):
        return {
            "qweight": PartShape(("I32",), (inputs // per_word, outputs) if packing == "gptq" else (inputs, words)),
            "qzeros": PartShape(("I32",), (groups, words)),
            "scales": PartShape(scales, (groups, outputs)),
            "g_idx": order,
        }
    both = {"weight_scale": PartShape(scales, (outputs, groups)), "weight_g_idx": order}
    if packing == "int8":
        return both | {
            "weight": PartShape(("I8",), shape),
            "weight_zero_point": PartShape(("I8",), (outputs, groups)),
        }
    return both | {
        "weight_packed": PartShape(("I32",), (outputs, inputs // per_word)),
        "weight_zero_point": PartShape(("I32",), (words, groups)),
        "weight_shape": PartShape(_WHOLE_NUMBERS, (2,)),
    }


def _refuse_other_order(product: CodedProduct) -> None:
    """With `desc_act`, the inputs of a group are not side by side."""
    inputs, group = product.shape[1], product.kind.group or product.shape[1]
    for suffix in _ORDERS:
        tensor = product.parts.get(suffix)
        if tensor is not None and not np.array_equal(tensor.read_integers(), np.arange(inputs) // group):
            raise UnsupportedModelError(
                f"{tensor.path}: the tensor {tensor.name!r} puts inputs into groups in another order than theirs "
                "(desc_act, act-order), which is not supported. Use another engine for it (--engine vllm), or a "
                "checkpoint made without desc_act."
            )
