"""Batching: what speculation still buys as more requests share the GPUs. A model, not a measurement.

    python -m slipstream.bench.batching        the tables of docs/scaling.md

- A step reads the weights once, whatever the number of requests, and the KV cache of every request; it computes one
  row for each request, and one more for each drafted token. Reading and computing overlap as in `doctor/fit`.
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
from dataclasses import dataclass, replace
from functools import cached_property

from slipstream.doctor.fit import WORTH_IT, Device, Sizes, acceptance_prior, expected_tokens, kv_bytes_per_token
from slipstream.doctor.gpus import GPU_SHARE, TFLOPS, nominal_bandwidth, nominal_flops
from slipstream.doctor.stated_sizes import Stated, sizes_from
from slipstream.errors import UsageError

STREAMS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MAX_LENGTH = 8
FIXED_LENGTH = 4  # what a setting that nobody looks at again drafts
CONTEXT = 1024  # tokens of an average request that is being answered
FLOPS_SHARE = 0.5  # of a GPU's nominal arithmetic that products of some hundred rows reach; an assumption
MESSAGE_S = 12e-6  # latency of one all-reduce between GPUs of a machine; an assumption
LINK_BANDWIDTH = 300e9  # bytes a second between them, as reached; an assumption
LOGIT_PASSES = 6  # times that a row's logits are read or written while a token is chosen; an assumption
BYTES_PER_WEIGHT = 2
LLAMA3_VOCABULARY = 128_256


@dataclass(frozen=True)
class Gpus:
    """GPUs of one kind in one machine that share every layer."""

    name: str
    count: int = 1

    @cached_property
    def device(self) -> Device:
        """All of them as one. UsageError for a name that is not in the tables."""
        bandwidth, flops = nominal_bandwidth(self.name), nominal_flops(self.name)
        if bandwidth is None or flops is None:
            raise UsageError(
                f"no bandwidth and arithmetic are known for the GPU {self.name!r}; {', '.join(TFLOPS)} are"
            )
        return Device(bandwidth * GPU_SHARE * self.count, flops * FLOPS_SHARE * self.count)

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
class Drafter:
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

    def tokens_per_s(self, drafter: Drafter | None = None, length: int = 0) -> float:
        """Of one request, drafting `length` tokens a round."""
        if drafter is None or length == 0:
            return 1 / self.step_s(self.target, 1)
        drafting_s = length * self.step_s(drafter.model, 1) if drafter.model else 0.0
        round_s = drafting_s + self.step_s(self.target, length + 1)
        return expected_tokens(drafter.acceptance, length) / round_s

    def speedup(self, drafter: Drafter, length: int) -> float:
        return self.tokens_per_s(drafter, length) / self.tokens_per_s()

    def best_length(self, drafter: Drafter) -> int:
        """The draft length with the highest speed; 0 where none gains 5 %, which is within the model's error."""
        best = max(range(1, MAX_LENGTH + 1), key=lambda length: self.tokens_per_s(drafter, length))
        return best if self.speedup(drafter, best) >= WORTH_IT else 0


@dataclass(frozen=True, slots=True)
class Case:
    """A table: a target on its GPUs, and the drafters to compare."""

    title: str
    target: Sizes
    gpus: Gpus
    drafters: tuple[Drafter, ...]

    def at(self, streams: int) -> Load:
        return Load(self.target, self.gpus, streams)


def schedule(case: Case, drafter: Drafter, streams: Iterable[int] = STREAMS) -> list[tuple[int, int, int]]:
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


# -- the tables of the guide ------------------------------------------------------------------------------------------


def published(name: str, hidden_size: int) -> Sizes:
    """A published Llama 3 in bf16."""
    sizes, _ = sizes_from(Stated(1.0, name), name)
    weight_bytes = sizes.num_parameters * BYTES_PER_WEIGHT
    return replace(sizes, weight_bytes=weight_bytes, hidden_size=hidden_size, vocab_size=LLAMA3_VOCABULARY)


def guide_cases() -> list[Case]:
    small = published("Llama-3.2-1B-Instruct", 2048)
    lookups = (Drafter("n-gram, repeating text", 0.6), Drafter("n-gram, chat", 0.25))
    cases = []
    for name, hidden, gpus in (
        ("Llama-3.1-8B-Instruct", 4096, Gpus("H100")),
        ("Llama-3.3-70B-Instruct", 8192, Gpus("H100", 4)),
    ):
        target = published(name, hidden)
        chance = acceptance_prior(target.num_parameters, small.num_parameters)
        pair = Drafter("draft model 1B", round(chance, 2), small)
        title = f"{name} in bf16 on {gpus.count} x {gpus.name}, requests of {CONTEXT:,} tokens"
        cases.append(Case(title, target, gpus, (pair, *lookups)))
    return cases


def table(case: Case) -> list[str]:
    """A table in Markdown, and beneath it when to stop."""
    heads = [f"{drafter.name} (a = {drafter.acceptance:g})" for drafter in case.drafters]
    lines = [
        f"**{case.title}**",
        "",
        f"| requests | each | all | {' | '.join(heads)} | {case.drafters[0].name}, always {FIXED_LENGTH} |",
        f"| ---: | ---: | ---: |{' ---: |' * (len(heads) + 1)}",
        *(_row(case, streams) for streams in STREAMS),
        "",
    ]
    return [*lines, *(_advice(case, drafter) for drafter in case.drafters), ""]


def _row(case: Case, streams: int) -> str:
    load = case.at(streams)
    plain = load.tokens_per_s()
    cells = [f"{streams}", f"{plain:.0f}", f"{plain * streams:,.0f}"]
    cells += [_cell(load, drafter, load.best_length(drafter)) for drafter in case.drafters]
    cells.append(f"{load.speedup(case.drafters[0], FIXED_LENGTH):.2f}x")
    return f"| {' | '.join(cells)} |"


def _cell(load: Load, drafter: Drafter, length: int) -> str:
    return f"{load.speedup(drafter, length):.2f}x ({length})" if length else "off"


def _advice(case: Case, drafter: Drafter) -> str:
    entries = schedule(case, drafter)
    paying = max((end for _, end, length in entries if length), default=0)
    text = ", ".join(f"[{start}, {end}, {length}]" for start, end, length in entries)
    until = f"pays up to {paying} requests" if paying else "never pays"
    return f'- {drafter.name}: {until}; `"num_speculative_tokens_per_batch_size": [{text}]`'


def main() -> None:
    print("\n".join(line for case in guide_cases() for line in table(case)).rstrip())


if __name__ == "__main__":
    main()
