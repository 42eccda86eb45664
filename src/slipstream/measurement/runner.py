"""The one timing method: every generator answers every prompt, interleaved, cold, in random order."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from slipstream.core.generator import Generator
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.measurement.kept import keeping
from slipstream.measurement.samples import PromptSample
from slipstream.measurement.workload import Prompt, run_conversation

_WARM_TOKENS = 16
_WARM_RUNS = 8  # at most
_STEADY = 0.05  # the last three runs agree to this share
_WARM_UP_TEXT = "Once upon a time"


@dataclass(frozen=True, slots=True)
class BenchSettings:
    sampling: Sampling = field(default_factory=Sampling)
    limits: Limits = field(default_factory=lambda: Limits(64))
    passes: int = 2
    seed: int = 0  # of the order
    warm_prompts: bool = False  # keep the prompt cache between answers
    keep_learned: bool = False  # let drafters meet a prompt again


Opener = Callable[[], AbstractContextManager[Generator]]  # an engine that runs inside the block
Progress = Callable[[int, int, str], None]  # samples done, samples in all, what comes next


def run_bench(
    generators: Sequence[Generator], prompts: Sequence[Prompt], settings: BenchSettings, progress: Progress
) -> tuple[list[PromptSample], bool]:
    """All samples, and whether that is all of them: Ctrl-C ends the run early and keeps what is there.

    In a pass each generator meets each prompt once. Prompt caches are cold, and what a drafter learned is forgotten
    between passes, so that no drafter has met its prompt before, unless the settings say otherwise. Raises
    UnfinishedBenchError, which holds the samples until then, where an answer fails.
    """
    samples: list[PromptSample] = []
    try:
        warm_up(generators[0])
        total = settings.passes * len(prompts) * len(generators)
        with keeping(samples):
            for number, generator, prompt in _schedule(generators, prompts, settings):
                progress(len(samples), total, f"{prompt.kind}: {generator.label}")
                samples.append(_sample(generator, prompt, number, settings))
    except KeyboardInterrupt:
        return samples, False
    progress(total, total, "done")
    return samples, True


def _schedule(
    generators: Sequence[Generator], prompts: Sequence[Prompt], settings: BenchSettings
) -> Iterator[tuple[int, Generator, Prompt]]:
    """Who answers what, by pass, in random order. Drafters forget what they learned when a pass begins."""
    order = random.Random(settings.seed)
    for number in range(settings.passes):
        for generator in () if settings.keep_learned else generators:
            generator.forget_learned()
        for prompt in order.sample(list(prompts), len(prompts)):
            for generator in order.sample(list(generators), len(generators)):
                yield number, generator, prompt


def _sample(generator: Generator, prompt: Prompt, number: int, settings: BenchSettings) -> PromptSample:
    if not settings.warm_prompts:
        generator.forget_prompts()
    answers = run_conversation(generator, prompt, settings.sampling, settings.limits)
    return PromptSample(generator.label, prompt, number, tuple(answers))


def warm_up(generator: Generator) -> None:
    """Short answers until the speed holds still: caches, clocks and kernels are warm then."""
    speeds: list[float] = []
    for _ in range(_WARM_RUNS):
        generator.forget_prompts()
        answer = generator.answer(_WARM_UP_TEXT, Sampling(), Limits(_WARM_TOKENS, ignore_eos=True))
        speeds.append(answer.stats.tokens_per_s)
        last = speeds[-3:]
        if len(last) == 3 and max(last) - min(last) <= _STEADY * max(last):
            return
