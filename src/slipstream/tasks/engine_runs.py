"""Engines as tasks use them: checked by the doctor, started with reports of how far they are, explained where they
fail."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.diagnosis.examine import Case, examine
from slipstream.diagnosis.logs import explain
from slipstream.engines import find_folder
from slipstream.engines.driver import ExternalEngine
from slipstream.engines.engine_types import EngineSettings
from slipstream.engines.http_generator import HttpGenerator
from slipstream.engines.ports import free_port
from slipstream.engines.process import indented
from slipstream.engines.readiness import Explain
from slipstream.engines.session import Running, require_speculation, running
from slipstream.errors import EngineError, EngineRequestError, SilentFallbackError
from slipstream.findings import Finding, refuse, worst_first
from slipstream.tasks.reporter import Reporter

_COLOURS = "red, blue, green, gold, grey, pink, "
_DATES = (
    "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday, January, February, March, April, May, June, July, "
    f"August, September, October, November, December, {_COLOURS}"
)
# Lists that repeat: every drafter has something to draft here. The short one fits small contexts; the long one repeats
# after more than 48 tokens, which is what the longest drafts of n-gram methods need.
_REPEATING = (_COLOURS * 3, _DATES * 2 + _DATES[:60])
_PROBE_TOKENS = 64  # more than the 48 after which the long list repeats


def explainer(engine: ExternalEngine) -> Explain:
    """The doctor's explanations of the engine's log, what blocks first."""

    def explained(log: str) -> list[str]:
        findings = worst_first(explain(log, engine.name))
        return [f"{f.id}: {f.cause} {f.fix}" for f in findings if f.severity != "note"]

    return explained


def check_first(engine: ExternalEngine, settings: EngineSettings) -> list[Finding]:
    """What the doctor says of models, machine and configuration. Raises BlockedError where something blocks."""
    case = Case(
        _on_disk(settings.model),
        _on_disk(settings.draft) if _on_disk(settings.model) else None,
        engine.name,
        context=settings.context,
        batch=settings.streams or 1,
    )
    findings = worst_first([*examine(case).findings, *_check_configuration(engine, settings)])
    refuse(findings)
    return findings


def _check_configuration(engine: ExternalEngine, settings: EngineSettings) -> list[Finding]:
    """The command line or files that are about to be used, as if the user had written them."""
    configuration = find_folder(engine.name).configuration
    if configuration is None:
        return []
    plan = engine.plan(settings, Path())
    texts = list(plan.files.values()) or [shlex.join(plan.argv)]
    return [finding for text in texts for finding in configuration.lint(text)]


def _on_disk(model: str | None) -> str | None:
    return model if model and Path(model).exists() else None


@contextmanager
def engine_running(
    engine: ExternalEngine,
    settings: EngineSettings,
    reporter: Reporter,
    api_key: str | None = None,
    *,
    detached: bool = False,
) -> Iterator[Running]:
    """Starts it, reports its stages, and makes sure that it speculates where it was asked to."""
    explained = explainer(engine)
    reporter.say(f"starting {engine.name} ({settings.method}) on port {settings.port}")
    with running(engine, settings, reporter.say, explained, api_key, detached=detached) as ready:
        with deaths_explained(ready):
            state = require_speculation(engine, ready.client, settings, explained)
        reporter.say(f"ready after {ready.ready_s:.1f} s; speculation: {state.evidence}")
        yield ready


def require_drafts(engine: Running) -> int | None:
    """Tokens that it drafts while it continues text that repeats itself; None if it reports no counters.

    Raises SilentFallbackError if it drafts nothing there.
    """
    known = 0
    for prompt in _REPEATING:
        count = _num_drafted(engine, prompt)
        if count:
            return count
        known += count is not None
    if not known:
        return None
    length = "" if engine.settings.draft_length is None else f", draft length {engine.settings.draft_length}"
    raise SilentFallbackError(
        f"{engine.engine.name} drafted nothing with {engine.settings.method}{length}: its counters stayed at 0 in "
        f"{known} test request{'s' if known > 1 else ''} of {_PROBE_TOKENS} tokens for text that repeats itself. It "
        f"decodes plainly with this setting; choose another method or draft length "
        f"(slipstream tune --engine {engine.engine.name})"
    )


def _num_drafted(engine: Running, prompt: str) -> int | None:
    """Tokens drafted for one answer; None if that is not reported, or if the prompt is refused."""
    generator = HttpGenerator(engine.engine, engine.client, engine.settings.method)
    try:
        with deaths_explained(engine):
            stats = generator.answer(prompt, Sampling(), Limits(_PROBE_TOKENS, ignore_eos=True)).stats
    except EngineRequestError as error:
        if error.status is None:  # no refusal: it is gone, or hangs
            raise
        return None
    return stats.num_drafted if stats.drafts_counted else None


@contextmanager
def deaths_explained(engine: Running) -> Iterator[None]:
    """An engine that dies inside the block is reported with its last lines and what they mean."""
    try:
        yield
    except EngineRequestError as error:
        raise _died(engine, error, explainer(engine.engine)) from error


def _died(ended: Running, error: EngineRequestError, explained: Explain) -> EngineError:
    """The request's error; with the engine's end and last lines where that was the cause."""
    time.sleep(0.3)  # a process that is just dying
    status = ended.process.exit_code
    if status is None:
        return error
    said = indented(ended.process.last_lines(8))
    why = "\n".join(explained(ended.process.log.read_text(errors="replace")))
    message = f"{ended.engine.name} exited with status {status} during a request. Its last lines:\n{said}"
    return EngineRequestError(f"{message}\n{why}".rstrip(), error.status, error.partial_text)


def on_free_port(settings: EngineSettings) -> EngineSettings:
    """For engines that only live for a measurement."""
    return replace(settings, port=free_port())
