"""bench of another engine: plain against speculative decoding under the same load."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from slipstream.core.generator import Generator
from slipstream.engines.client import Client
from slipstream.engines.driver import ExternalEngine, NamedModelEngine
from slipstream.engines.engine_types import PLAIN, EngineSettings
from slipstream.engines.http_generator import HttpGenerator
from slipstream.engines.secrets import redacted_text
from slipstream.engines.session import Running
from slipstream.errors import EngineError
from slipstream.measurement.kept import written_first
from slipstream.measurement.load import run_load
from slipstream.measurement.load_result import load_result
from slipstream.measurement.results import BenchResult
from slipstream.measurement.runner import BenchSettings
from slipstream.measurement.workload import Prompt
from slipstream.models.spec import OLLAMA_PREFIX
from slipstream.tasks.engine_runs import check_first, deaths_explained, engine_running, on_free_port
from slipstream.tasks.engine_settings import as_given, engine_settings, with_method
from slipstream.tasks.options import EngineChoice, ModelOptions, RunningEngineOptions
from slipstream.tasks.reporter import Reporter

_FORCED = re.compile(r"rejection[_-]sample[_-]method\W+synthetic|synthetic[_-]acceptance")


@dataclass(frozen=True, slots=True)
class EngineComparison:
    """What is compared: plain decoding and ways to draft, in engines that are started here, or two that run already."""

    choice: EngineChoice
    models: ModelOptions
    drafters: Sequence[str]  # empty: with the draft, and what the engine drafts with where none is named
    running: RunningEngineOptions = field(default_factory=RunningEngineOptions)
    one_at_a_time: bool = False
    warm: bool = False

    @classmethod
    def of(
        cls,
        choice: EngineChoice,
        models: ModelOptions,
        running: RunningEngineOptions,
        one_at_a_time: bool = False,
        warm: bool = False,
    ) -> EngineComparison:
        """`models.drafter` names the ways to draft, separated by commas."""
        names = models.drafter.split(",") if models.drafter else []
        chosen = replace(models, drafter=None).resolved(choice.name)
        return cls(choice, chosen, names, running, one_at_a_time, warm)

    def urls(self) -> dict[str, str]:
        """Engines that run already, by label."""
        given = {"running": self.running.url, PLAIN: self.running.plain_url}
        return {label: url for label, url in given.items() if url}


def bench_engine(
    comparison: EngineComparison,
    prompts: Sequence[Prompt],
    settings: BenchSettings,
    stream_counts: Sequence[int],
    command: str,
    reporter: Reporter,
) -> BenchResult:
    """Two instances side by side, or two starts, one engine under load at a time. Partial where an engine died."""
    with ExitStack() as stack:
        openers = _openers(comparison, stack, reporter)
        run = run_load(openers, prompts, settings, stream_counts, reporter.progress)
        if not run.samples:
            raise EngineError(run.error or "stopped before anything was measured")
    with written_first(run.samples):
        forced = forces_acceptance(comparison.choice)
        return load_result(run, settings, _described(comparison, len(prompts)), command, forced)


def forces_acceptance(choice: EngineChoice) -> bool:
    """Whether the engine's arguments force the acceptance of drafts, as vLLM's synthetic rejection sampler does."""
    return bool(_FORCED.search(choice.engine_args))


def settings_by_label(comparison: EngineComparison) -> dict[str, EngineSettings]:
    """Plain decoding and each way to draft."""
    choice, models = comparison.choice, comparison.models
    engine = choice.find()
    plain = engine_settings(choice, replace(models, drafter=PLAIN))
    engine.plan(plain, Path())  # raises for one that is only asked, at its --url
    drafters = comparison.drafters or ([models.drafter] if models.drafter else default_drafters(engine, models.draft))
    draft = as_given(choice.name, models.draft) if models.draft else None
    chosen = {PLAIN: plain}
    for drafter in drafters:
        if drafter != PLAIN:
            settings = with_method(engine, plain, drafter, models.policy, draft)
            chosen[label_of(settings)] = settings
    return chosen


def default_drafters(engine: ExternalEngine, draft: str | None) -> list[str]:
    return [*(["model"] if draft else []), engine.default_drafter]


def label_of(settings: EngineSettings) -> str:
    length = "" if settings.draft_length is None else f" {settings.draft_length}"
    options = settings.options or ("" if settings.p_min is None else f"p_min={settings.p_min:g}")
    return f"{settings.method}{f'({options})' if options else ''}{length}"


def _openers(
    comparison: EngineComparison, stack: ExitStack, reporter: Reporter
) -> dict[str, Callable[[], AbstractContextManager[Generator]]]:
    engine, warm = comparison.choice.find(), comparison.warm
    if comparison.running.url:
        return {label: partial(attached, comparison, label) for label in comparison.urls()}
    chosen = {label: on_free_port(settings) for label, settings in settings_by_label(comparison).items()}
    check_all(engine, list(chosen.values()))
    if comparison.one_at_a_time:
        return {label: partial(started, engine, settings, label, reporter, warm) for label, settings in chosen.items()}
    instances = {label: stack.enter_context(engine_running(engine, one, reporter)) for label, one in chosen.items()}
    return {label: partial(asked, running, label, warm) for label, running in instances.items()}


def check_all(engine: ExternalEngine, settings: Sequence[EngineSettings]) -> None:
    """The doctor first: what can't work is not measured."""
    for one in settings:
        check_first(engine, one)


@contextmanager
def started(
    engine: ExternalEngine, settings: EngineSettings, label: str, reporter: Reporter, warm: bool = False
) -> Iterator[Generator]:
    """An engine of its own, for as long as the block lasts."""
    with engine_running(engine, settings, reporter) as running, asked(running, label, warm) as generator:
        yield generator


@contextmanager
def asked(running: Running, label: str, warm: bool = False) -> Iterator[Generator]:
    """An engine that was started before. Its death inside the block is explained. `warm`: prompts may be cached."""
    with deaths_explained(running):
        yield running.generator(label, cold=not warm)


@contextmanager
def attached(comparison: EngineComparison, label: str) -> Iterator[Generator]:
    """An engine that runs already, and runs on. `ollama:NAME` names the model that is meant there."""
    model = comparison.models.name
    named = model.removeprefix(OLLAMA_PREFIX) if model.startswith(OLLAMA_PREFIX) else None
    client, engine = Client(comparison.urls()[label], comparison.running.key()), comparison.choice.find()
    if isinstance(engine, NamedModelEngine):
        named = engine.served_model(client)
    yield HttpGenerator(engine, client, label, model=named, cold=not comparison.warm)


def _described(comparison: EngineComparison, num_prompts: int) -> dict[str, Any]:
    engine, models, url = comparison.choice.find(), comparison.models, comparison.running.url
    return {
        "model": redacted_text(url) if url else models.model,
        "model_spec": models.model,
        "draft": models.draft,
        "engine": engine.name,
        "engine_checked_against": engine.version,
        "dtype": engine.name,
        "device": redacted_text(comparison.choice.engine_args) or "its own settings",
        "num_prompts": num_prompts,
    }
