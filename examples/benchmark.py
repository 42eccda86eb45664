"""A benchmark from Python: does speculation pay on this machine, with this model and this kind of text?

Two prompts and one pass show how it is done. For figures to rely on, leave the options out.
"""

import json
from pathlib import Path

import slipstream
from slipstream import BenchOptions, ModelOptions, WorkloadOptions


class Progress(slipstream.Reporter):
    def progress(self, done: float, total: float, what: str) -> None:
        print(f"  {done:.0f} of {total:.0f}: {what}")


result = slipstream.bench(
    ModelOptions("smollm2-135m", drafter="ngram,suffix"),
    WorkloadOptions(limit=2, max_tokens=16),
    BenchOptions(passes=1),
    reporter=Progress(),
)
for run in result.runs:
    if run.kind == "all":
        print(f"{run.drafter}: {run.tokens_per_s:.1f} tokens/s, {run.speedup.value:.2f}x, same text: {run.same_text}")
print(result)

Path("bench.json").write_text(json.dumps(result.to_dict()))  # slipstream compare takes two of these
