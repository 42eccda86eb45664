"""The tables of docs/scaling.md: what speculation buys as more requests share the GPUs.

python tools/scaling_tables.py
"""

from __future__ import annotations

from dataclasses import replace

from batching import (
    BYTES_PER_WEIGHT,
    CONTEXT,
    STREAMS,
    AssumedDrafter,
    Gpus,
    Load,
    LoadTable,
    schedule,
)
from slipstream.catalogue.stated_sizes import Stated, sizes_from
from slipstream.predict.sizes import Sizes
from slipstream.predict.speed import acceptance_prior

LLAMA3_VOCABULARY = 128_256
FIXED_LENGTH = 4  # what a setting that nobody looks at again drafts


def published(name: str, hidden_size: int) -> Sizes:
    """A published Llama 3 in bf16."""
    sizes, _ = sizes_from(Stated(1.0, name), name)
    weight_bytes = sizes.num_parameters * BYTES_PER_WEIGHT
    return replace(sizes, weight_bytes=weight_bytes, hidden_size=hidden_size, vocab_size=LLAMA3_VOCABULARY)


def guide_cases() -> list[LoadTable]:
    small = published("Llama-3.2-1B-Instruct", 2048)
    lookups = (AssumedDrafter("n-gram, repeating text", 0.6), AssumedDrafter("n-gram, chat", 0.25))
    cases = []
    for name, hidden, gpus in (
        ("Llama-3.1-8B-Instruct", 4096, Gpus("H100")),
        ("Llama-3.3-70B-Instruct", 8192, Gpus("H100", 4)),
    ):
        target = published(name, hidden)
        chance = acceptance_prior(target.num_parameters, small.num_parameters)
        pair = AssumedDrafter("draft model 1B", round(chance, 2), small)
        title = f"Simulated: {name} in bf16 on {gpus.count} x {gpus.name}, requests of {CONTEXT:,} tokens"
        cases.append(LoadTable(title, target, gpus, (pair, *lookups)))
    return cases


def table(case: LoadTable) -> list[str]:
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


def _row(case: LoadTable, streams: int) -> str:
    load = case.at(streams)
    plain = load.tokens_per_s()
    cells = [f"{streams}", f"{plain:.0f}", f"{plain * streams:,.0f}"]
    cells += [_cell(load, drafter, load.best_length(drafter)) for drafter in case.drafters]
    cells.append(f"{load.speedup(case.drafters[0], FIXED_LENGTH):.2f}x")
    return f"| {' | '.join(cells)} |"


def _cell(load: Load, drafter: AssumedDrafter, length: int) -> str:
    return f"{load.speedup(drafter, length):.2f}x ({length})" if length else "off"


def _advice(case: LoadTable, drafter: AssumedDrafter) -> str:
    entries = schedule(case, drafter)
    paying = max((end for _, end, length in entries if length), default=0)
    text = ", ".join(f"[{start}, {end}, {length}]" for start, end, length in entries)
    until = f"pays up to {paying} requests" if paying else "never pays"
    return f'- {drafter.name}: {until}; `"num_speculative_tokens_per_batch_size": [{text}]`'


def main() -> None:
    print("\n".join(line for case in guide_cases() for line in table(case)).rstrip())


if __name__ == "__main__":
    main()
