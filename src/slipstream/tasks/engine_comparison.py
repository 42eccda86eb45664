"""What bench, tune and audit of another engine share: which engines are compared, and how each is started and asked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from slipstream.core.generator import Generator
from slipstream.engines.client import Client
from slipstream.engines.driver import ExternalEngine, NamedModelEngine
from slipstream.engines.engine_types import PLAIN, EngineSettings
from slipstream.engines.http_generator import HttpGenerator
from slipstream.engines.session import Running
from slipstream.measurement.runner import Opener
from slipstream.models.sources.spec import OLLAMA_PREFIX
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


def checked_settings(comparison: EngineComparison) -> dict[str, EngineSettings]:
    """Those of every engine to start, each on a free port. Raises BlockedError: what can't work is not measured."""
    engine = comparison.choice.find()
    chosen = {label: on_free_port(settings) for label, settings in settings_by_label(comparison).items()}
    for settings in chosen.values():
        check_first(engine, settings)
    return chosen


def openers(comparison: EngineComparison, reporter: Reporter) -> dict[str, Opener]:
    """By label: engines that run already, or one start after the other."""
    if comparison.running.url:
        return {label: partial(attached, comparison, label) for label in comparison.urls()}
    engine, warm = comparison.choice.find(), comparison.warm
    return {
        label: partial(started, engine, settings, label, reporter, warm)
        for label, settings in checked_settings(comparison).items()
    }


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
