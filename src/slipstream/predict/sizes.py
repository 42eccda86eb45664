"""Sizes: the sizes of a model that predictions need, and the bytes of its KV cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from slipstream.errors import UnsupportedModelError
from slipstream.model_files.kv_layers import KvLayers
from slipstream.model_files.model_facts import FP8_BY_BLOCK, ModelFacts

KvType = Literal["f16", "q8", "q4"]

# Bytes per cached number, including the scale of its block of 32: 8 or 4 bits, and 16 bits per block.
KV_BYTES: dict[KvType, float] = {"f16": 2.0, "q8": 34 / 32, "q4": 18 / 32}
ASSUMED_BITS = 4.85  # bits per weight if only a file's size is known: Q4_K_M, the most common quantisation


LARGEST = 10_000_000  # layers, heads, widths, tokens of a vocabulary: far more than any model has


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a model that the prediction needs. Zero or empty: unknown."""

    name: str
    weight_bytes: int  # as stored
    num_parameters: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    context_length: int = 0
    vocab_size: int = 0
    hidden_size: int = 0
    architecture: str = ""
    format: str = ""
    kv_layers: tuple[KvLayers, ...] = ()  # empty: all layers keep keys and values of all KV heads
    kv_is_bound: bool = False  # the files do not say all about the cache: it may be smaller
    is_fp8: bool = False
    has_fp8_blocks: bool = False  # blocks of inputs have scales of their own

    @classmethod
    def of(cls, facts: ModelFacts) -> Sizes:
        """The sizes from a model's files. Raises UnsupportedModelError if the files do not have them."""
        if not (facts.weight_bytes and facts.num_layers and facts.num_kv_heads and facts.head_dim):
            raise UnsupportedModelError(
                f"{facts.name}: its files do not say the size of weights, layers and KV heads. Check it with "
                "slipstream doctor, or set the sizes: --weights-gb, --layers, --kv-heads, --head-dim."
            )
        numbers = (facts.num_layers, facts.num_kv_heads, facts.head_dim, facts.vocab_size, facts.hidden_size)
        if any(number and number > LARGEST for number in numbers):
            raise UnsupportedModelError(f"{facts.name}: its files have sizes that no model has")
        shape = facts.kv_shape
        return cls(
            facts.name, facts.weight_bytes, facts.num_parameters or parameters_from(facts.weight_bytes),
            facts.num_layers, facts.num_kv_heads, facts.head_dim, facts.context_length or 0, facts.vocab_size or 0,
            facts.hidden_size or 0, facts.architecture or "", facts.format or "",
            shape.layers if shape else (), shape.is_bound if shape else False, facts.quantisation == "FP8",
            facts.quantisation_kind == FP8_BY_BLOCK,
        )  # fmt: skip

    @classmethod
    def from_dict(cls, read: Mapping[str, Any]) -> Sizes:
        """The reverse of `asdict`. Raises TypeError or KeyError for anything else."""
        layers = tuple(KvLayers(**layer) for layer in read["kv_layers"])
        return cls(**{f.name: read[f.name] for f in fields(cls) if f.name != "kv_layers"}, kv_layers=layers)

    @property
    def is_quantised(self) -> bool:
        """Whether files have their weights as codes: 16 bits each and more are floats, and so is FP8."""
        small = self.weight_bytes * 8 < 10 * self.num_parameters
        return self.format in ("gguf", "safetensors") and small and not self.is_fp8

    @property
    def layers(self) -> tuple[KvLayers, ...]:
        return self.kv_layers or (KvLayers(self.num_layers, 2 * self.num_kv_heads * self.head_dim),)


@dataclass(frozen=True, slots=True)
class KvPolicy:
    """How an engine keeps the cache. Where it does not do what a model allows, the cache is as large as without."""

    keeps_windows: bool = True  # forgets what is outside a sliding window
    keeps_latent: bool = True  # MLA: keeps the compressed form
    window_margin: int = 0  # tokens that it keeps beside the window: those of a prompt's part


AS_MODELS_ALLOW = KvPolicy()


def kv_bytes(sizes: Sizes, tokens: int, number_bytes: float = 2.0, policy: KvPolicy = AS_MODELS_ALLOW) -> int:
    """The KV cache of one stream of `tokens` tokens, over all layers."""
    total = 0.0
    for group in sizes.layers:
        has_window = group.window and policy.keeps_windows
        kept = min(tokens, group.window + policy.window_margin) if has_window else tokens
        numbers = group.numbers if policy.keeps_latent or not group.expanded else group.expanded
        total += group.num_layers * numbers * kept
    return int(total * number_bytes)


def parameters_from(weight_bytes: int) -> int:
    return int(weight_bytes * 8 / ASSUMED_BITS)


def is_too_large(target: Sizes, draft: Sizes) -> bool:
    """A draft with as many parameters as its target: no draft is worth it then."""
    return draft.num_parameters >= target.num_parameters
