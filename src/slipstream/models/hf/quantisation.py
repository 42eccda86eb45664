"""`quantization_config` of config.json: how the products of a folder are stored as codes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from slipstream.errors import UnsupportedModelError
from slipstream.models.hf.config import QUANTISATION, Fields, refused_method
from slipstream.models.quantised import GROUP

WHOLE_ROW = 0
Packing = Literal["gptq", "awq", "packed", "int8", "fp8"]
_FORMATS: dict[str, Packing] = {  # of compressed-tensors
    "pack-quantized": "packed",
    "int-quantized": "int8",
    "float-quantized": "fp8",
}


@dataclass(frozen=True, slots=True)
class CodeKind:
    bits: int
    group: int  # inputs that share a scale; WHOLE_ROW: all

    def groups(self, inputs: int) -> int:
        return inputs // (self.group or inputs)


@dataclass(frozen=True, slots=True)
class QuantScheme:
    """`kinds` are those that products may have; which one it is, their shapes say."""

    packing: Packing
    kinds: tuple[CodeKind, ...] = ()
    zero_shift: int = 0  # what is added to stored zero points
    block: tuple[int, int] | None = None  # of FP8: outputs and inputs that share a scale, if it is blocks that do


def scheme_from_hf(values: Mapping[str, Any], path: Path) -> QuantScheme | None:
    """None if the weights are floats. Raises DamagedModelError, and UnsupportedModelError for what is not read."""
    stated = values.get(QUANTISATION)
    if stated is None:
        return None
    if not isinstance(stated, dict):
        raise Fields(path, values).wrong(QUANTISATION, stated, "an object")
    fields = Fields(path, stated)
    method = fields.text("quant_method", "unknown")
    if method.lower() not in _READERS:
        raise refused_method(path, method)
    return _READERS[method.lower()](fields)


def _refused(fields: Fields, what: str, supported: str) -> UnsupportedModelError:
    method = fields.text("quant_method", "")[:40]
    return UnsupportedModelError(
        f"{fields.path} describes a checkpoint quantised with {method!r} and {what}; {supported} supported. Use "
        "another engine for it (--engine vllm), a GGUF file of the same model, or the unquantised checkpoint."
    )


def _group(fields: Fields, size: int) -> int:
    if size == -1:
        return WHOLE_ROW
    if size < 1 or size % GROUP:
        raise _refused(fields, f"groups of {size} inputs", f"groups of a multiple of {GROUP} inputs are")
    return size


def _gptq(fields: Fields) -> QuantScheme:
    """The first format stores zero points minus one."""
    bits, form = fields.integer("bits"), fields.text("checkpoint_format", "gptq")
    if bits not in (4, 8):
        raise _refused(fields, f"{bits} bits", "4 and 8 bits are")
    if form not in ("gptq", "gptq_v2") or fields.flag("is_marlin_format"):
        raise _refused(fields, f"the format {form[:40]!r}", "gptq and gptq_v2 are")
    if fields.values.get("dynamic"):
        raise _refused(fields, "other settings for some layers (dynamic)", "the same settings for all layers are")
    kind = CodeKind(bits, _group(fields, fields.integer("group_size", 128)))
    return QuantScheme("gptq", (kind,), zero_shift=int(form == "gptq"))


def _awq(fields: Fields) -> QuantScheme:
    bits = fields.integer("bits", fields.integer("w_bit", 4))
    version = fields.text("version", "gemm")
    if bits != 4:
        raise _refused(fields, f"{bits} bits", "4 bits are")
    if version.lower() != "gemm":
        raise _refused(fields, f"the version {version[:40]!r}", "gemm is")
    if fields.values.get("zero_point") is False:
        raise _refused(fields, "no zero points", "weights with zero points are")
    size = fields.integer("group_size", fields.integer("q_group_size", 128))
    return QuantScheme("awq", (CodeKind(bits, _group(fields, size)),))


def _compressed_tensors(fields: Fields) -> QuantScheme:
    form, groups = fields.text("format", "missing"), fields.values.get("config_groups")
    if not isinstance(groups, dict) or not groups or not all(isinstance(group, dict) for group in groups.values()):
        raise fields.wrong("config_groups", groups, "an object of groups")
    for stated in (form, *(group.get("format") or form for group in groups.values())):
        if stated != form or form not in _FORMATS:
            raise _refused(fields, f"the format {str(stated)[:40]!r}", f"{' and '.join(_FORMATS)} are")
    for key in ("sparsity_config", "transform_config", "kv_cache_scheme"):
        if _says_something(fields.values.get(key)):
            raise _refused(fields, f"a {key}", "weights in whole numbers alone are")
    if _FORMATS[form] == "fp8":
        return QuantScheme("fp8", block=_compressed_block(fields, [group.get("weights") for group in groups.values()]))
    kinds = tuple(_compressed_kind(fields, group.get("weights")) for group in groups.values())
    return QuantScheme(_FORMATS[form], kinds)


def _says_something(value: object) -> bool:
    return bool(value) and not (isinstance(value, dict) and value.get("format") == "dense")


def _compressed_kind(outer: Fields, weights: object) -> CodeKind:
    """Codes of a few bits that have a byte each are read as codes of 8 bits."""
    if not isinstance(weights, dict):
        raise outer.wrong("weights", weights, "an object")
    fields = Fields(outer.path, weights)
    bits, kind, strategy = fields.integer("num_bits"), fields.text("type", "int"), fields.text("strategy", "tensor")
    if kind != "int" or bits not in (4, 8):
        raise _refused(outer, f"weights of type {kind[:40]!r} in {bits} bits", "whole numbers of 4 and 8 bits are")
    if strategy not in ("channel", "group"):
        raise _refused(outer, f"the strategy {strategy[:40]!r}", "channel and group are")
    size = fields.integer("group_size") if strategy == "group" else -1
    in_bytes = _FORMATS[outer.text("format", "")] == "int8"
    return CodeKind(8 if in_bytes else bits, _group(outer, size))


def _compressed_block(outer: Fields, groups: Sequence[object]) -> tuple[int, int] | None:
    blocks = set()
    for weights in groups:
        if not isinstance(weights, dict):
            raise outer.wrong("weights", weights, "an object")
        fields = Fields(outer.path, weights)
        bits, kind, strategy = fields.integer("num_bits"), fields.text("type", "int"), fields.text("strategy", "tensor")
        if kind != "float" or bits != 8 or strategy not in ("tensor", "channel", "block"):
            what = f"weights of type {kind[:40]!r} in {bits} bits by {strategy[:40]!r}"
            raise _refused(outer, what, "floats of 8 bits by tensor, channel and block are")
        blocks.add(_block(fields, "block_structure"))
    return next((block for block in blocks if block), None)


def _fp8(fields: Fields) -> QuantScheme:
    form = fields.text("fmt", "e4m3")
    if form != "e4m3":
        raise _refused(fields, f"the format {form[:40]!r}", "e4m3 is")
    return QuantScheme("fp8", block=_block(fields, "weight_block_size"))


def _block(fields: Fields, key: str) -> tuple[int, int] | None:
    stated = fields.values.get(key)
    if stated is None:
        return None
    if not isinstance(stated, list) or len(stated) != 2 or not all(type(size) is int and size > 0 for size in stated):
        raise fields.wrong(key, stated, "two whole numbers")
    return stated[0], stated[1]


_READERS: dict[str, Callable[[Fields], QuantScheme]] = {
    "gptq": _gptq,
    "awq": _awq,
    "compressed-tensors": _compressed_tensors,
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
}
