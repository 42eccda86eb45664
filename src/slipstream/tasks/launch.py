"""launch: start another engine with speculation, and make sure that it is really on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from slipstream.core.generator import Answer
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.engines import find_folder
from slipstream.engines.detached import Detached, detached_engines, forget, remember
from slipstream.engines.driver import ExternalEngine
from slipstream.engines.engine_types import PLAIN, EngineSettings
from slipstream.engines.process import stop_detached
from slipstream.engines.secrets import redacted
from slipstream.engines.session import Running
from slipstream.errors import SilentFallbackError
from slipstream.findings import BlockedError
from slipstream.measurement.results import NO_COUNTERS
from slipstream.tasks.engine_runs import check_first, deaths_explained, engine_running, require_drafts
from slipstream.tasks.engine_settings import engine_settings
from slipstream.tasks.options import EngineChoice, LaunchOptions, ModelOptions, as_models, startable
from slipstream.tasks.reporter import SILENT, Reporter

_CHEAP_BYTES = 8e9  # of weights: a second start for the comparison takes seconds up to here
_SMOKE_TOKENS = 24
_SMOKE_PROMPTS = (
    "List the days of the week, then list them again.",
    "Write a Python function that adds two numbers, and a test for it.",
)


@dataclass(frozen=True, slots=True)
class SmokeTest:
    """A few answers beside plain decoding's."""

    num_same: int
    num_answers: int
    plain_tokens_per_s: float
    tokens_per_s: float

    def __str__(self) -> str:
        return (
            f"{self.num_same} of {self.num_answers} texts identical; {self.tokens_per_s:.1f} tokens/s, plain "
            f"{self.plain_tokens_per_s:.1f} (from a few tokens only; to measure: slipstream bench --engine)"
        )


@dataclass(frozen=True, slots=True)
class Launched:
    """An engine that runs and speculates."""

    running: Running
    smoke: SmokeTest | None  # None: not compared
    num_drafted: int | None = None  # in a test request; None: not known, or plain decoding

    @property
    def url(self) -> str:
        return self.running.settings.url

    def __repr__(self) -> str:
        return f"<Launched {self.running.engine.name} at {self.url}>"

    def to_dict(self) -> dict[str, Any]:
        settings = self.running.settings
        report: dict[str, Any] = {
            "engine": self.running.engine.name,
            "url": settings.url,
            "model": settings.model,
            "method": settings.method,
            "command": redacted(self.running.plan.argv),
            "log": str(self.running.process.log),
            "ready_s": self.running.ready_s,
            "num_drafted": self.num_drafted,
        }
        if self.smoke:
            report |= {"smoke": str(self.smoke), "same_text": self.smoke.num_same == self.smoke.num_answers}
        return report


@contextmanager
def launch(
    engine: str | EngineChoice,
    models: str | ModelOptions | None = None,
    options: LaunchOptions = LaunchOptions(),
    *,
    reporter: Reporter = SILENT,
) -> Iterator[Launched]:
    """An engine for as long as the block lasts; with `detach` it runs on.

    The doctor looks at it first. Once it is ready, its own counters must show that it drafts: engines fall back to
    plain decoding silently. Raises BlockedError where the doctor finds that it can't work, EngineError where it does
    not start or drafts nothing. `force` starts it in spite of the doctor, and keeps it although it drafts nothing.
    """
    choice = EngineChoice(startable(engine)) if isinstance(engine, str) else engine
    settings = engine_settings(choice, as_models(models).resolved(choice.name))
    found = choice.find()
    _consult_doctor(found, settings, options.force, reporter)
    plain = _plain_answers(found, settings, choice.key, reporter) if options.smoke else None
    with engine_running(found, settings, reporter, choice.key, detached=options.detach) as running:
        num_drafted = _drafts_checked(running, options.force, reporter)
        smoke = _compared(plain, _smoke_answers(running)) if plain else None
        if smoke:
            reporter.say(f"compared with plain decoding: {smoke}")
        if options.detach:
            _remember(running)
        yield Launched(running, smoke, num_drafted)


def detached(engine: str | None = None, port: int | None = None, *, stop: bool = False) -> list[Detached]:
    """Engines that were left running, of this kind and at this port. `stop` ends them."""
    name = find_folder(engine).name if engine else None
    chosen = [one for one in detached_engines() if name in (None, one.engine)]
    if port is not None:
        chosen = [one for one in chosen if one.url.endswith(f":{port}")]
    for one in chosen if stop else ():
        stop_detached(one.pid)
        forget(one)
    return chosen


def _consult_doctor(engine: ExternalEngine, settings: EngineSettings, force: bool, reporter: Reporter) -> None:
    try:
        for finding in check_first(engine, settings):
            if finding.severity == "slows":
                reporter.say(f"{finding.id}: {finding.cause} {finding.fix}")
    except BlockedError as error:
        if not force:
            raise
        reporter.say(f"started anyway (--force): {error}")


def _drafts_checked(running: Running, force: bool, reporter: Reporter) -> int | None:
    """Tokens drafted in a test request; None for plain decoding, and where it is not known."""
    if running.settings.method == PLAIN:
        return None
    try:
        num_drafted = require_drafts(running)
    except SilentFallbackError as error:
        if not force:
            raise SilentFallbackError(f"{error}, or add --force to run it all the same") from error
        reporter.say(f"WARNING: {error}. It keeps running because of --force")
        return 0
    reporter.say(NO_COUNTERS if num_drafted is None else f"it drafts: {num_drafted} tokens in a test request")
    return num_drafted


def _plain_answers(
    engine: ExternalEngine, settings: EngineSettings, api_key: str | None, reporter: Reporter
) -> list[Answer] | None:
    """Of the same engine without speculation, in a start of its own; None where that is not cheap."""
    if settings.method == PLAIN:
        return None
    path = Path(settings.model)
    size = path.stat().st_size if path.is_file() else sum(f.stat().st_size for f in path.glob("*.safetensors"))
    if not 0 < size <= _CHEAP_BYTES or settings.nodes > 1:
        reporter.say(
            "not compared with plain decoding, because a second start is not cheap here; to compare: slipstream bench "
            "--engine")  # fmt: skip
        return None
    plain = replace(settings, method=PLAIN, draft=None, draft_length=None, p_min=None, draft_streams=None)
    with engine_running(engine, plain, reporter, api_key) as running:
        return _smoke_answers(running)


def _smoke_answers(running: Running) -> list[Answer]:
    generator = running.generator(running.settings.method)
    prompts = [[{"role": "user", "content": text}] for text in _SMOKE_PROMPTS]
    with deaths_explained(running):
        return [generator.answer(prompt, Sampling(), Limits(_SMOKE_TOKENS)) for prompt in prompts]


def _compared(plain: list[Answer], answers: list[Answer]) -> SmokeTest:
    same = sum(a.text == b.text for a, b in zip(plain, answers, strict=True))
    speeds = [sum(a.stats.tokens_per_s for a in side) / len(side) for side in (plain, answers)]
    return SmokeTest(same, len(plain), *speeds)


def _remember(running: Running) -> None:
    settings = running.settings
    remember(
        Detached(
            engine=running.engine.name,
            pid=running.process.pid,
            url=settings.url,
            model=settings.model,
            method=settings.method,
            log=str(running.process.log),
            started=datetime.now().astimezone().isoformat(timespec="seconds"),
        )
    )
