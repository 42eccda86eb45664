"""Speed: predicts how fast a target and a draft are on a machine, alone and together.

The model behind `predict`, whose constants can be checked with a measurement (`pairs --measure`):

- One forward of n rows reads all weights and computes n rows. The two overlap imperfectly: the time is the 3-norm of
  both. For the two models tried on this project's CPU kernels that is within 10 % from 1 to 16 rows.
- A round drafts n tokens, one forward pass of the draft each, and scores n + 1 rows of the target.
- If a drafted token is accepted with probability a, a round yields (1 - a^(n+1)) / (1 - a) tokens (Leviathan et al.).
- The probability is measured, or comes from `acceptance_prior`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from slipstream.errors import UnsupportedModelError
from slipstream.model_files.model_facts import ModelFacts
from slipstream.predict.machine import Machine

PairKind = Literal["same family", "same vocabulary", "translated"]
KvType = Literal["f16", "q8", "q4"]

# Bytes per cached number, including the scale of its block of 32: 8 or 4 bits, and 16 bits per block.
KV_BYTES: dict[KvType, float] = {"f16": 2.0, "q8": 34 / 32, "q4": 18 / 32}

MAX_DRAFT = 16
WORTH_IT = 1.05  # a predicted speed-up below this is within the error of the prediction
FORWARD_S = 0.5e-3  # seconds per forward pass besides its arithmetic: launches, sampling, the loop
FLOPS_PER_BYTE = 60.0  # a GPU's operations per byte it reads, for small batches; an assumption
FLOPS_PER_CORE = 25e9  # operations/s of one core; two busy ARM cores measured 12e9 each, wide x86 cores do more
ASSUMED_BITS = 4.85  # bits per weight if only a file's size is known: Q4_K_M, the most common quantisation

# The prior: 0.84 for a draft as large as its target, 0.045 less for each halving of the draft. An estimate, not fitted
# to data: 0.78 for 3B + 1B, 0.72 for 8B + 1B, 0.56 for 70B + 1B. The one pair measured so far (Qwen2.5-Coder 1.5B +
# 0.5B, greedy, 4 prompts) had 0.76 where it says 0.77.
EQUAL_ACCEPTANCE, ACCEPTANCE_PER_HALVING = 0.84, 0.045
KIND_PENALTY: dict[PairKind, float] = {"same family": 0.0, "same vocabulary": 0.1, "translated": 0.2}


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a model that the prediction needs. Zero: unknown."""

    name: str
    weight_bytes: int  # as stored
    num_parameters: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    context_length: int = 0
    vocab_size: int = 0
    hidden_size: int = 0

    @classmethod
    def of(cls, facts: ModelFacts) -> Sizes:
        """The sizes from a model's files. Raises UnsupportedModelError if the files do not have them."""
        if not (facts.weight_bytes and facts.num_layers and facts.num_kv_heads and facts.head_dim):
            raise UnsupportedModelError(
                f"{facts.name}: its files do not say the size of weights, layers and KV heads. Check it with "
                "slipstream doctor, or set the sizes: --weights-gb, --layers, --kv-heads, --head-dim."
            )
        return cls(
            facts.name, facts.weight_bytes, facts.num_parameters or parameters_from(facts.weight_bytes),
            facts.num_layers, facts.num_kv_heads, facts.head_dim, facts.context_length or 0, facts.vocab_size or 0,
            facts.hidden_size or 0,
        )  # fmt: skip


def kv_bytes_per_token(sizes: Sizes, kv: KvType = "f16") -> float:
    """Keys and values of one token, over all layers."""
    return 2 * sizes.num_layers * sizes.num_kv_heads * sizes.head_dim * KV_BYTES[kv]


# -- prediction -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    """The device of a model: bytes of weights read per second, and operations per second."""

    bandwidth: float
    flops: float

    @classmethod
    def of(cls, machine: Machine, num_bytes: int, *, allow_gpu: bool = True) -> DeviceSpeed:
        """The device that has this much memory: the GPU if possible."""
        gpu = machine.gpu_for(num_bytes) if allow_gpu else None
        if gpu:
            return cls(gpu.read_bandwidth, gpu.read_bandwidth * FLOPS_PER_BYTE)
        return cls(machine.cpu_read_bandwidth, machine.cores * FLOPS_PER_CORE)

    def forward_s(self, weight_bytes: int, num_parameters: int, rows: int, kv_bytes: float = 0.0) -> float:
        """`kv_bytes` are those of all streams: attention reads them once, in addition to the weights."""
        reading, computing = (weight_bytes + kv_bytes) / self.bandwidth, 2 * num_parameters * rows / self.flops
        return float(np.cbrt(reading**3 + computing**3)) + FORWARD_S


@dataclass(frozen=True, slots=True)
class Prediction:
    plain_tokens_per_s: float
    tokens_per_s: float  # with speculation
    speedup: float
    n_draft: int  # the best draft length
    p_min: float  # below this confidence a drafted token costs more than it gains
    acceptance: float  # chance that a drafted token is taken
    acceptance_source: Literal["prior", "measured"]
    draft_share: float  # of the time spent drafting


def acceptance_prior(target_parameters: int, draft_parameters: int, kind: PairKind = "same family") -> float:
    """How often a drafted token is accepted, before any measurement: by size ratio and kind of pair."""
    halvings = math.log2(max(target_parameters / max(draft_parameters, 1), 1.0))
    return max(EQUAL_ACCEPTANCE - ACCEPTANCE_PER_HALVING * halvings - KIND_PENALTY[kind], 0.1)


def predict(
    target_bytes: int,
    draft_bytes: int,
    device: DeviceSpeed,
    acceptance: float | None = None,
    kind: PairKind = "same family",
    target_parameters: int | None = None,
    draft_parameters: int | None = None,
    batch: int = 1,
) -> Prediction:
    """Plain and speculative speed of one stream at the best draft length, in a batch of `batch` streams.

    `*_bytes` are the bytes a forward pass reads. Missing parameter counts are computed from the bytes, at ASSUMED_BITS
    each.
    """
    target_n = target_parameters or parameters_from(target_bytes)
    draft_n = draft_parameters or parameters_from(draft_bytes)
    source: Literal["prior", "measured"] = "prior" if acceptance is None else "measured"
    chance = acceptance_prior(target_n, draft_n, kind) if acceptance is None else acceptance
    plain_s = device.forward_s(target_bytes, target_n, batch)
    draft_s = device.forward_s(draft_bytes, draft_n, batch)

    def round_s(n: int) -> float:
        return n * draft_s + device.forward_s(target_bytes, target_n, batch * (n + 1))

    best = max(range(1, MAX_DRAFT + 1), key=lambda n: expected_tokens(chance, n) / round_s(n))
    token_s = round_s(best) / expected_tokens(chance, best)
    one_more_s = draft_s + device.forward_s(target_bytes, target_n, batch * (best + 1)) - plain_s
    return Prediction(
        plain_tokens_per_s=1 / plain_s,
        tokens_per_s=1 / token_s,
        speedup=plain_s / token_s,
        n_draft=best,
        p_min=min(max(round(one_more_s / best / token_s * 20) / 20, 0.0), 0.9),
        acceptance=chance,
        acceptance_source=source,
        draft_share=best * draft_s / round_s(best),
    )


def predict_pair(
    machine: Machine, target: Sizes, draft: Sizes, kind: PairKind = "same family", batch: int = 1
) -> Prediction:
    """`predict` for two models on this machine, with weights as stored."""
    device = DeviceSpeed.of(machine, target.weight_bytes + draft.weight_bytes)
    return predict(
        target.weight_bytes, draft.weight_bytes, device, None, kind,
        target.num_parameters, draft.num_parameters, batch,
    )  # fmt: skip


def expanded(machine: Machine, sizes: Sizes) -> Sizes:
    """The sizes in Slipstream's own engine: 2 bytes per weight on a GPU, 4 on the CPU."""
    on_gpu = machine.gpu_for(2 * sizes.num_parameters) is not None
    return replace(sizes, weight_bytes=(2 if on_gpu else 4) * sizes.num_parameters)


def parameters_from(weight_bytes: int) -> int:
    return int(weight_bytes * 8 / ASSUMED_BITS)


def expected_tokens(acceptance: float, n_draft: int) -> float:
    """Tokens per round, including the target's own."""
    if acceptance >= 1:
        return n_draft + 1.0
    return float((1 - acceptance ** (n_draft + 1)) / (1 - acceptance))


def largest_paying_batch(
    target_bytes: int, draft_bytes: int, device: DeviceSpeed, acceptance: float | None = None
) -> int:
    """The largest power of two of concurrent streams at which speculation still gains 5 %; 0 when it never does."""
    paying = [
        batch
        for batch in (1, 2, 4, 8, 16, 32, 64, 128, 256)
        if predict(target_bytes, draft_bytes, device, acceptance, batch=batch).speedup >= WORTH_IT
    ]
    return max(paying, default=0)
