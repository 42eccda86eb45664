"""`slipstream bench --engine`: plain against speculative decoding of another engine, under the same load."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from slipstream.cli import engine_options as eng
from slipstream.errors import EngineError, UsageError

if TYPE_CHECKING:
    from slipstream.bench.results import BenchResult
    from slipstream.bench.runner import BenchSettings
    from slipstream.bench.workload import Prompt
    from slipstream.core.generator import Generator
    from slipstream.engines.engine import EngineSettings, ExternalEngine
    from slipstream.engines.session import Running


_FORCED = re.compile(r"rejection[_-]sample[_-]method\W+synthetic|synthetic[_-]acceptance")


@dataclass(frozen=True, slots=True)
class Contest:
    """What is measured: engines that are started here, or two that run already."""

    choice: eng.EngineChoice
    drafting: eng.Drafting
    drafters: Sequence[str]  # empty: what the engine has for the draft, or n-grams
    url: str | None = None
    plain_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    one_at_a_time: bool = False
    warm: bool = False


def bench_engine(
    contest: Contest, prompts: Sequence[Prompt], settings: BenchSettings, stream_counts: Sequence[int], command: str
) -> BenchResult:
    """Two instances side by side, or two starts, one engine under load at a time. Partial where an engine died."""
    from slipstream.bench.kept import keeping
    from slipstream.bench.load import run_load
    from slipstream.bench.load_result import load_result
    from slipstream.cli.bench import progress_bar

    with ExitStack() as stack, progress_bar("measuring") as progress:
        openers = _openers(contest, stack)
        run = run_load(openers, prompts, settings, stream_counts, progress)
        if not run.samples:
            raise EngineError(run.error or "it was stopped before anything was measured")
    with keeping(run.samples):
        forced = forces_acceptance(contest.choice)
        return load_result(run, settings, _described(contest, len(prompts)), command, forced)


def forces_acceptance(choice: eng.EngineChoice) -> bool:
    """Whether the engine is told to accept drafts by decree, as vLLM's synthetic rejection sampler does."""
    return bool(_FORCED.search(choice.engine_args))


def contestants(contest: Contest) -> dict[str, EngineSettings]:
    """Plain decoding and each way to draft, by label."""
    from slipstream.engines.engine import PLAIN

    engine = contest.choice.find()
    drafting = contest.drafting
    plain = eng.engine_settings(contest.choice, replace(drafting, drafter=PLAIN))
    drafters = contest.drafters or ([drafting.drafter] if drafting.drafter else default_drafters(drafting.draft))
    draft = eng.as_given(contest.choice.name, drafting.draft) if drafting.draft else None
    chosen = {PLAIN: plain}
    for drafter in drafters:
        if drafter != PLAIN:
            settings = eng.with_method(engine, plain, drafter, drafting.policy, draft)
            chosen[label_of(settings)] = settings
    return chosen


def default_drafters(draft: str | None) -> list[str]:
    return ["model", "ngram"] if draft else ["ngram"]


def label_of(settings: EngineSettings) -> str:
    length = "" if settings.draft_length is None else f" {settings.draft_length}"
    sure = "" if settings.p_min is None else f"(p_min={settings.p_min:g})"
    return f"{settings.method}{sure}{length}"


def _openers(contest: Contest, stack: ExitStack) -> dict[str, Callable[[], AbstractContextManager[Generator]]]:
    from slipstream.cli.engine_runs import engine_running, on_free_port

    engine = contest.choice.find()
    if contest.url:
        return {label: partial(attached, contest, label) for label in attached_urls(contest)}
    chosen = {label: on_free_port(settings) for label, settings in contestants(contest).items()}
    check_all(engine, list(chosen.values()))
    if contest.one_at_a_time:
        return {label: partial(started, engine, settings, label, contest.warm) for label, settings in chosen.items()}
    instances = {label: stack.enter_context(engine_running(engine, settings)) for label, settings in chosen.items()}
    return {label: partial(asked, running, label, contest.warm) for label, running in instances.items()}


def check_all(engine: ExternalEngine, settings: Sequence[EngineSettings]) -> None:
    """The doctor first: what can't work is not measured."""
    from slipstream.cli.engine_runs import check_first

    for one in settings:
        check_first(engine, one)


@contextmanager
def started(engine: ExternalEngine, settings: EngineSettings, label: str, warm: bool = False) -> Iterator[Generator]:
    """An engine of its own, for as long as the block lasts."""
    from slipstream.cli.engine_runs import engine_running

    with engine_running(engine, settings) as running, asked(running, label, warm) as generator:
        yield generator


@contextmanager
def asked(running: Running, label: str, warm: bool = False) -> Iterator[Generator]:
    """An engine that was started before. Its death inside the block is explained. `warm`: prompts may be cached."""
    from slipstream.cli.engine_runs import deaths_explained

    with deaths_explained(running):
        yield running.generator(label, cold=not warm)


def attached_urls(contest: Contest) -> dict[str, str]:
    """Engines that run already, by label."""
    from slipstream.engines.engine import PLAIN

    given = {"running": contest.url, PLAIN: contest.plain_url}
    return {label: url for label, url in given.items() if url}


@contextmanager
def attached(contest: Contest, label: str) -> Iterator[Generator]:
    """An engine that runs already, and runs on. `ollama:NAME` names the model that is meant there."""
    from slipstream.engines.client import Client
    from slipstream.engines.http_generator import HttpGenerator
    from slipstream.models.spec import OLLAMA_PREFIX

    model = contest.drafting.model
    named = model.removeprefix(OLLAMA_PREFIX) if model.startswith(OLLAMA_PREFIX) else None
    client = Client(attached_urls(contest)[label], contest.api_key)
    yield HttpGenerator(contest.choice.find(), client, label, model=named, cold=not contest.warm)


def _described(contest: Contest, num_prompts: int) -> dict[str, Any]:
    from slipstream.engines.secrets import redacted_text

    engine = contest.choice.find()
    return {
        "model": redacted_text(contest.url) if contest.url else contest.drafting.model,
        "model_spec": contest.drafting.model,
        "draft": contest.drafting.draft,
        "engine": engine.name,
        "engine_checked_against": engine.version,
        "dtype": engine.name,
        "device": redacted_text(contest.choice.engine_args) or "its own settings",
        "num_prompts": num_prompts,
    }


def read_streams(text: str) -> list[int]:
    """`1,4,16`. Raises UsageError for anything but whole numbers from 1."""
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise UsageError(f"--streams {text!r}; expected numbers from 1, separated by commas: 1,4,16")
    return counts
