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
from dataclasses import dataclass
from typing import Literal

import numpy as np

PairKind = Literal["same family", "same vocabulary", "translated"]

MAX_DRAFT = 16
WORTH_IT = 1.05  # a predicted speed-up below this is within the error of the prediction
FORWARD_S = 0.5e-3  # seconds per forward pass besides its arithmetic: launches, sampling, the loop
FLOPS_PER_BYTE = 60.0  # a GPU's operations per byte it reads, for small batches; an assumption
FLOPS_PER_CORE = 25e9  # operations/s of one core; two busy ARM cores measured 12e9 each, wide x86 cores do more

# The prior: 0.84 for a draft as large as its target, 0.045 less for each halving of the draft. An estimate, not fitted
# to data: 0.78 for 3B + 1B, 0.72 for 8B + 1B, 0.56 for 70B + 1B. The one pair measured so far (Qwen2.5-Coder 1.5B +
# 0.5B, greedy, 4 prompts) had 0.76 where it says 0.77.
EQUAL_ACCEPTANCE, ACCEPTANCE_PER_HALVING = 0.84, 0.045
KIND_PENALTY: dict[PairKind, float] = {"same family": 0.0, "same vocabulary": 0.1, "translated": 0.2}


# -- prediction -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    """The device of a model: bytes of weights read per second, and operations per second."""

    bandwidth: float
    flops: float

    def forward_s(self, weight_bytes: int, num_parameters: int, rows: int, kv_bytes: float = 0.0) -> float:
        """`kv_bytes` are those of all streams: attention reads them once, in addition to the weights."""
        reading, computing = (weight_bytes + kv_bytes) / self.bandwidth, 2 * num_parameters * rows / self.flops
        return float(np.cbrt(reading**3 + computing**3)) + FORWARD_S


@dataclass(frozen=True, slots=True)
class PlacedModel:
    """A model on its device. `weight_bytes` are the bytes that a forward pass reads: the weights as held there."""

    weight_bytes: int
    num_parameters: int
    device: DeviceSpeed

    def forward_s(self, rows: int) -> float:
        return self.device.forward_s(self.weight_bytes, self.num_parameters, rows)


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

    def __str__(self) -> str:
        return (
            f"{self.plain_tokens_per_s:.0f} tokens/s plain, {self.tokens_per_s:.0f} tokens/s ({self.speedup:.1f}x) "
            f"with {self.n_draft} drafted token{'' if self.n_draft == 1 else 's'} per step"
        )


def acceptance_prior(target_parameters: int, draft_parameters: int, kind: PairKind = "same family") -> float:
    """How often a drafted token is accepted, before any measurement: by size ratio and kind of pair."""
    halvings = math.log2(max(target_parameters / max(draft_parameters, 1), 1.0))
    return max(EQUAL_ACCEPTANCE - ACCEPTANCE_PER_HALVING * halvings - KIND_PENALTY[kind], 0.1)


def predict(
    target: PlacedModel,
    draft: PlacedModel,
    acceptance: float | None = None,
    kind: PairKind = "same family",
    batch: int = 1,
) -> Prediction:
    """Plain and speculative speed of one stream at the best draft length, in a batch of `batch` streams."""
    source: Literal["prior", "measured"] = "prior" if acceptance is None else "measured"
    chance = acceptance_prior(target.num_parameters, draft.num_parameters, kind) if acceptance is None else acceptance
    plain_s, draft_s = target.forward_s(batch), draft.forward_s(batch)

    def round_s(n: int) -> float:
        return n * draft_s + target.forward_s(batch * (n + 1))

    best = max(range(1, MAX_DRAFT + 1), key=lambda n: expected_tokens(chance, n) / round_s(n))
    token_s = round_s(best) / expected_tokens(chance, best)
    one_more_s = draft_s + target.forward_s(batch * (best + 1)) - plain_s
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


def expected_tokens(acceptance: float, n_draft: int) -> float:
    """Tokens per round, including the target's own."""
    if acceptance >= 1:
        return n_draft + 1.0
    return float((1 - acceptance ** (n_draft + 1)) / (1 - acceptance))


def largest_paying_batch(target: PlacedModel, draft: PlacedModel, acceptance: float | None = None) -> int:
    """The largest power of two of concurrent streams at which speculation still gains 5 %; 0 when it never does."""
    batches = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    return max((b for b in batches if predict(target, draft, acceptance, batch=b).speedup >= WORTH_IT), default=0)
