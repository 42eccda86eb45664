"""Load: plain against speculative decoding of an engine with its own loop, with several streams at the same time.

The samples are those of the runner, with the number of streams in place of the kind of text, so that summaries,
verdicts and tables are the same as everywhere. Only one engine is under load at any time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from slipstream.core.generator import Generator
from slipstream.errors import EngineError
from slipstream.measurement.ratio import ratio
from slipstream.measurement.runner import BenchSettings, Opener, Progress, warm_up
from slipstream.measurement.samples import PromptSample
from slipstream.measurement.workload import Prompt, run_conversation


@dataclass(frozen=True, slots=True)
class Throughput:
    """All streams of one engine together, in one pass."""

    generator: str
    streams: int
    tokens_per_s: float


@dataclass(slots=True)
class LoadRun:
    """`error` is what ended it early; what was measured until then is here all the same."""

    samples: list[PromptSample] = field(default_factory=list)
    throughputs: list[Throughput] = field(default_factory=list)
    complete: bool = True
    error: str | None = None


def run_load(
    engines: dict[str, Opener],
    prompts: Sequence[Prompt],
    settings: BenchSettings,
    stream_counts: Sequence[int],
    progress: Progress,
) -> LoadRun:
    """In a pass every engine, in random order, meets all prompts with each number of streams.

    Ctrl-C, or an engine that dies or refuses, ends the run and keeps what was measured.
    """
    run, order = LoadRun(), random.Random(settings.seed)
    total = settings.passes * len(engines) * len(stream_counts)
    done = 0

    def measure(label: str, number: int) -> None:
        nonlocal done
        with engines[label]() as generator:
            warm_up(generator)
            for streams in stream_counts:
                progress(done, total, f"{label}: {_kind(streams)}")
                _run_streams(run, generator, prompts, settings, streams, number)
                done += 1

    try:
        for number in range(settings.passes):
            for label in order.sample(list(engines), len(engines)):
                measure(label, number)
    except KeyboardInterrupt:
        run.complete = False
    except EngineError as error:
        run.complete, run.error = False, str(error)
    progress(done, total, "done")
    return run


def _run_streams(
    run: LoadRun, generator: Generator, prompts: Sequence[Prompt], settings: BenchSettings, streams: int, number: int
) -> None:
    """All prompts, `streams` at a time. Samples are kept as they come in, also when a later one fails."""

    def one(prompt: Prompt) -> int:
        answers = run_conversation(generator, prompt, settings.sampling, settings.limits)
        labelled = replace(prompt, id=f"{prompt.id} x{streams}", kind=_kind(streams))
        sample = PromptSample(generator.label, labelled, number, tuple(answers))
        run.samples.append(sample)
        return sample.num_tokens

    work = _enough(prompts, streams)
    began = time.perf_counter()
    pool = ThreadPoolExecutor(streams)
    try:
        futures = [pool.submit(one, prompt) for prompt in work]
        tokens = sum(future.result() for future in futures)
    finally:  # after a failure nobody waits for the others: their engine is about to be ended
        pool.shutdown(wait=False, cancel_futures=True)
    run.throughputs.append(Throughput(generator.label, streams, ratio(tokens, time.perf_counter() - began)))


def _enough(prompts: Sequence[Prompt], streams: int) -> list[Prompt]:
    """At least one prompt a stream: with fewer, they come again."""
    times = -(-streams // len(prompts))
    return [
        replace(prompt, id=f"{prompt.id}{f' again {turn}' if turn else ''}")
        for turn in range(max(times, 1))
        for prompt in prompts
    ]


def _kind(streams: int) -> str:
    return "1 stream" if streams == 1 else f"{streams} streams"
