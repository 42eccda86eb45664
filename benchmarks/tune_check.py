"""Does `tune` find what an exhaustive search finds, in a quarter of the time?

    python benchmarks/tune_check.py [--prompts 8] [--tokens 48]

For two workloads of the project's own prompts (texts that copy, texts that do not), every candidate of tune's default
grid answers every prompt, interleaved with plain decoding; then `tune` runs with a quarter of that time. Its choice
is judged by the exhaustive figures.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from functools import partial

import slipstream
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.loading import LoadedModel
from slipstream.measurement.engine_generator import EngineGenerator
from slipstream.measurement.prompt_files import own_prompts
from slipstream.measurement.replay import replayer
from slipstream.measurement.row_cost import measure_row_cost
from slipstream.measurement.tune import OFF, TuneCandidate, Tuner, grid
from slipstream.measurement.workload import Prompt, take
from slipstream.tasks.tune import FREE

WORKLOADS = {
    "copies": ("code-edit", "rewrite", "extraction", "rag"),
    "does not copy": ("chat", "maths", "code-writing", "translation"),
}


def engine(target: LoadedModel, candidate: TuneCandidate) -> slipstream.Engine:
    return slipstream.load(target, drafter=candidate.drafter, policy=candidate.policy)


def generator(target: LoadedModel, candidate: TuneCandidate) -> EngineGenerator:
    return EngineGenerator(candidate.label, partial(engine, target, candidate))


def exhaustive(target: LoadedModel, prompts: list[Prompt], limits: Limits) -> tuple[dict[TuneCandidate, float], float]:
    """Geometric mean speed-up of every candidate over all prompts, and the seconds that took."""
    candidates = [OFF, *(candidate for drafter in FREE for candidate in grid(drafter))]
    generators = {c: generator(target, c) for c in candidates}
    logs: dict[TuneCandidate, float] = dict.fromkeys(candidates, 0.0)
    order = random.Random(1)
    started = time.perf_counter()
    for prompt in prompts:
        speeds = {}
        for candidate in order.sample(candidates, len(candidates)):
            answer = generators[candidate].answer(prompt.request(), Sampling(), limits)
            speeds[candidate] = answer.stats.tokens_per_s
        for candidate in candidates:
            logs[candidate] += math.log(speeds[candidate] / speeds[OFF]) / len(prompts)
    return {c: math.exp(value) for c, value in logs.items()}, time.perf_counter() - started


def check(target: LoadedModel, kinds: tuple[str, ...], num_prompts: int, tokens: int) -> dict[str, object]:
    prompts = take([p for p in own_prompts() if p.kind in kinds], num_prompts)
    limits = Limits(tokens)
    truth, exhaustive_s = exhaustive(target, prompts, limits)
    best = max(truth, key=lambda c: truth[c])
    started = time.perf_counter()
    costs = measure_row_cost(target.model)
    replays = replayer(partial(engine, target), Sampling(), costs, can_replay=lambda candidate: True)
    seconds = exhaustive_s / 4 - (time.perf_counter() - started) - 2.0
    tuner = Tuner(partial(generator, target), prompts, Sampling(), limits, seconds, replay=replays)
    result = tuner.run(list(truth), costs, lambda share, what: None)
    tune_s = time.perf_counter() - started
    chosen, rule = result.best.candidate, result.rule_of_thumb()
    return {
        "prompts": len(prompts),
        "candidates": len(truth),
        "exhaustive_s": exhaustive_s,
        "tune_s": tune_s,
        "best": {"label": best.label, "speedup": truth[best]},
        "chosen": {"label": chosen.label, "speedup": truth[chosen]},
        "chosen_over_best": truth[chosen] / truth[best],
        "rule_of_thumb": rule and {"label": rule.candidate.label, "speedup": truth[rule.candidate]},
        "share_of_time": tune_s / exhaustive_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=48)
    arguments = parser.parse_args()
    target = slipstream.load_model("smollm2-135m")
    for name, kinds in WORKLOADS.items():
        print(json.dumps({name: check(target, kinds, arguments.prompts, arguments.tokens)}, indent=1))


if __name__ == "__main__":
    main()
