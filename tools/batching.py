"""Batching: the gain of speculation as more requests share the GPUs. A model, not a measurement.

- A step reads the weights once for any number of requests, and the KV cache of every request; it computes one
  row for each request, and one more for each drafted token. Reading and computing overlap as in `predict/speed`.
- The logits of every row are read a few times to choose a token.
- GPUs that share a layer exchange two messages per layer: a latency, and the rows' hidden states over the links.
- A round drafts n tokens, one draft step each (n-grams: no time), and verifies them in one step of the target.
  If a drafted token is accepted with probability a, it yields (1 - a^(n+1)) / (1 - a) tokens.
- With few requests compute is idle, so rows for drafts are free; with many, every drafted row takes the time of
  another request's row. KV reads grow with the requests but not with the drafts, so speculation pays off longer with
  long contexts.

Not included: the compute of attention (3 % at 1,000 tokens), prompts that are read in between, and scheduling.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from slipstream.errors import UsageError
from slipstream.predict.gpus import GPU_SHARE, by_name, nominal_bandwidth
from slipstream.predict.sizes import Sizes, kv_bytes
from slipstream.predict.speed import WORTH_IT, DeviceSpeed, expected_tokens

STREAMS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MAX_LENGTH = 8
CONTEXT = 1024  # tokens of an average active request
FLOPS_SHARE = 0.5  # share of a GPU's nominal compute that products of some hundred rows reach; an assumption
MESSAGE_S = 12e-6  # latency of one all-reduce between GPUs of a machine; an assumption
LINK_BANDWIDTH = 300e9  # bytes a second between them, in practice; an assumption
LOGIT_PASSES = 6  # times that a row's logits are read or written while a token is chosen; an assumption
BYTES_PER_WEIGHT = 2

# Nominal bf16 compute without sparsity in TFLOP/s, from data sheets.
TFLOPS = {
    "A10": 125, "A30": 165, "A40": 150, "A100": 312, "L4": 121, "L40": 181, "L40S": 362, "H100": 989, "H100 PCIe": 756,
    "H20": 148, "H200": 989, "GH200": 989, "B200": 2250, "MI300X": 1307,
    "RTX 3090": 71, "RTX 4080": 97, "RTX 4090": 165, "RTX 5090": 209, "RTX 6000 Ada": 182,
}  # fmt: skip


@dataclass(frozen=True)
class Gpus:
    """GPUs of one kind in one machine that share every layer."""

    name: str
    count: int = 1

    @cached_property
    def device(self) -> DeviceSpeed:
        """All GPUs as one device. Raises UsageError for a name that is not in the tables."""
        bandwidth, flops = nominal_bandwidth(self.name), by_name(TFLOPS, self.name)
        if bandwidth is None or flops is None:
            raise UsageError(f"unknown GPU {self.name!r}; bandwidth and compute are known for {', '.join(TFLOPS)}")
        return DeviceSpeed(bandwidth * GPU_SHARE * self.count, flops * 1e12 * FLOPS_SHARE * self.count)

    def sampling_s(self, sizes: Sizes, rows: int) -> float:
        """Seconds to choose tokens, on one GPU."""
        return rows * sizes.vocab_size * 4 * LOGIT_PASSES / (self.device.bandwidth / self.count)

    def messages_s(self, sizes: Sizes, rows: int) -> float:
        """Seconds per step for messages between GPUs that share layers."""
        if self.count == 1:
            return 0.0
        sent = 2 * (self.count - 1) / self.count * rows * sizes.hidden_size * BYTES_PER_WEIGHT
        return 2 * sizes.num_layers * (MESSAGE_S + sent / LINK_BANDWIDTH)


@dataclass(frozen=True, slots=True)
class AssumedDrafter:
    """A drafter: a model, or one that takes no time (`model` is None)."""

    name: str
    acceptance: float  # probability that a drafted token is accepted
    model: Sizes | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """Requests at the same time on a model and its GPUs."""

    target: Sizes
    gpus: Gpus
    streams: int
    context: int = CONTEXT

    def step_s(self, sizes: Sizes, rows_each: int) -> float:
        """One forward of `rows_each` rows for every request."""
        rows = self.streams * rows_each
        cached = self.streams * kv_bytes(sizes, self.context)
        forward_s = self.gpus.device.forward_s(sizes.weight_bytes, sizes.num_parameters, rows, cached)
        return forward_s + self.gpus.messages_s(sizes, rows) + self.gpus.sampling_s(sizes, rows)

    def tokens_per_s(self, drafter: AssumedDrafter | None = None, length: int = 0) -> float:
        """Tokens per second of one request, with `length` drafted tokens per round."""
        if drafter is None or length == 0:
            return 1 / self.step_s(self.target, 1)
        drafting_s = length * self.step_s(drafter.model, 1) if drafter.model else 0.0
        round_s = drafting_s + self.step_s(self.target, length + 1)
        return expected_tokens(drafter.acceptance, length) / round_s

    def speedup(self, drafter: AssumedDrafter, length: int) -> float:
        return self.tokens_per_s(drafter, length) / self.tokens_per_s()

    def best_length(self, drafter: AssumedDrafter) -> int:
        """The draft length with the highest speed; 0 if no length gains 5 %, the error of this model."""
        best = max(range(1, MAX_LENGTH + 1), key=lambda length: self.tokens_per_s(drafter, length))
        return best if self.speedup(drafter, best) >= WORTH_IT else 0


@dataclass(frozen=True, slots=True)
class LoadTable:
    """A table: a target on its GPUs, and the drafters to compare."""

    title: str
    target: Sizes
    gpus: Gpus
    drafters: tuple[AssumedDrafter, ...]

    def at(self, streams: int) -> Load:
        return Load(self.target, self.gpus, streams)


def schedule(case: LoadTable, drafter: AssumedDrafter, streams: Iterable[int] = STREAMS) -> list[tuple[int, int, int]]:
    """(from, to, draft length) by requests: the value of vLLM's `num_speculative_tokens_per_batch_size`."""
    entries: list[tuple[int, int, int]] = []
    start = 1
    for count in streams:
        length = case.at(count).best_length(drafter)
        if entries and entries[-1][2] == length:
            entries[-1] = (entries[-1][0], count, length)
        else:
            entries.append((start, count, length))
        start = count + 1
    return entries
