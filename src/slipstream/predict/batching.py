"""Batching: what speculation still buys as more requests share the GPUs. A model, not a measurement.

- A step reads the weights once, whatever the number of requests, and the KV cache of every request; it computes one
  row for each request, and one more for each drafted token. Reading and computing overlap as in `predict/speed`.
- Every row's logits are read a few times to choose from them.
- GPUs that share a layer add up two messages a layer: a latency, and the rows' hidden states over the links.
- A round drafts n tokens, one step of the draft each (n-grams: no time), and checks them in one step of the target.
  With a chance a that a drafted token is taken it yields (1 - a^(n+1)) / (1 - a) tokens.
- Few requests leave arithmetic idle, so rows for drafts are free; with many, every drafted row takes the place of
  somebody's own. KV reads grow with the requests but not with the drafts: long contexts keep speculation useful longer.

Left out: attention's own arithmetic (3 % at 1,000 tokens), prompts being read in between, and scheduling.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from slipstream.errors import UsageError
from slipstream.predict.gpus import GPU_SHARE, TFLOPS, nominal_bandwidth, nominal_flops
from slipstream.predict.speed import WORTH_IT, DeviceSpeed, Sizes, expected_tokens, kv_bytes_per_token

STREAMS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MAX_LENGTH = 8
CONTEXT = 1024  # tokens of an average request that is being answered
FLOPS_SHARE = 0.5  # of a GPU's nominal arithmetic that products of some hundred rows reach; an assumption
MESSAGE_S = 12e-6  # latency of one all-reduce between GPUs of a machine; an assumption
LINK_BANDWIDTH = 300e9  # bytes a second between them, as reached; an assumption
LOGIT_PASSES = 6  # times that a row's logits are read or written while a token is chosen; an assumption
BYTES_PER_WEIGHT = 2


@dataclass(frozen=True)
class Gpus:
    """GPUs of one kind in one machine that share every layer."""

    name: str
    count: int = 1

    @cached_property
    def device(self) -> DeviceSpeed:
        """All of them as one. UsageError for a name that is not in the tables."""
        bandwidth, flops = nominal_bandwidth(self.name), nominal_flops(self.name)
        if bandwidth is None or flops is None:
            raise UsageError(
                f"no bandwidth and arithmetic are known for the GPU {self.name!r}; {', '.join(TFLOPS)} are"
            )
        return DeviceSpeed(bandwidth * GPU_SHARE * self.count, flops * FLOPS_SHARE * self.count)

    def sampling_s(self, sizes: Sizes, rows: int) -> float:
        """Choosing tokens, on one of them."""
        return rows * sizes.vocab_size * 4 * LOGIT_PASSES / (self.device.bandwidth / self.count)

    def messages_s(self, sizes: Sizes, rows: int) -> float:
        """What sharing layers costs a step."""
        if self.count == 1:
            return 0.0
        sent = 2 * (self.count - 1) / self.count * rows * sizes.hidden_size * BYTES_PER_WEIGHT
        return 2 * sizes.num_layers * (MESSAGE_S + sent / LINK_BANDWIDTH)


@dataclass(frozen=True, slots=True)
class AssumedDrafter:
    """What drafts: a model, or nothing that takes time (`model` is None)."""

    name: str
    acceptance: float  # chance that a drafted token is taken
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
        kv_bytes = self.streams * self.context * kv_bytes_per_token(sizes)
        forward_s = self.gpus.device.forward_s(sizes.weight_bytes, sizes.num_parameters, rows, kv_bytes)
        return forward_s + self.gpus.messages_s(sizes, rows) + self.gpus.sampling_s(sizes, rows)

    def tokens_per_s(self, drafter: AssumedDrafter | None = None, length: int = 0) -> float:
        """Of one request, drafting `length` tokens a round."""
        if drafter is None or length == 0:
            return 1 / self.step_s(self.target, 1)
        drafting_s = length * self.step_s(drafter.model, 1) if drafter.model else 0.0
        round_s = drafting_s + self.step_s(self.target, length + 1)
        return expected_tokens(drafter.acceptance, length) / round_s

    def speedup(self, drafter: AssumedDrafter, length: int) -> float:
        return self.tokens_per_s(drafter, length) / self.tokens_per_s()

    def best_length(self, drafter: AssumedDrafter) -> int:
        """The draft length with the highest speed; 0 where none gains 5 %, which is within the model's error."""
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
    """(from, to, draft length) by requests: what vLLM takes as `num_speculative_tokens_per_batch_size`."""
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
