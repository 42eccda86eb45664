"""Engines as commands use them: checked by the doctor, started with progress on stderr, explained where they fail."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.errors import EngineError, EngineRequestError

if TYPE_CHECKING:
    from slipstream.doctor.findings import Finding
    from slipstream.engines.engine import EngineSettings, ExternalEngine
    from slipstream.engines.readiness import Explain
    from slipstream.engines.session import Running


def say(line: str) -> None:
    print(f"slipstream: {line}", file=sys.stderr, flush=True)


def explainer(engine: ExternalEngine) -> Explain:
    """The doctor's explanations of the engine's log, what blocks first."""
    from slipstream.doctor.findings import worst_first
    from slipstream.doctor.logs import explain

    def explained(log: str) -> list[str]:
        findings = worst_first(explain(log, engine.name))
        return [f"{f.id}: {f.cause} {f.fix}" for f in findings if f.severity != "note"]

    return explained


def check_first(engine: ExternalEngine, settings: EngineSettings) -> list[Finding]:
    """What the doctor says of models, machine and configuration. Raises BlockedError where something blocks."""
    from slipstream.doctor.examine import Case, examine
    from slipstream.doctor.findings import worst_first
    from slipstream.doctor.preflight import BlockedError
    from slipstream.engines import find_entry

    case = Case(
        _on_disk(settings.model),
        _on_disk(settings.draft) if _on_disk(settings.model) else None,
        find_entry(engine.name).in_doctor,
        context=settings.context,
        batch=settings.streams,
    )
    findings = worst_first([*examine(case).findings, *_check_configuration(engine, settings)])
    blocking = [f for f in findings if f.severity == "blocks"]
    if blocking:
        raise BlockedError(blocking)
    return findings


def _check_configuration(engine: ExternalEngine, settings: EngineSettings) -> list[Finding]:
    """The command line or files that are about to be used, as if the user had written them."""
    from slipstream.doctor.configs import lint

    plan = engine.plan(settings, Path())
    texts = list(plan.files.values()) or [shlex.join(plan.argv)]
    return [finding for text in texts for finding in lint(engine.name, text)]


def _on_disk(model: str | None) -> str | None:
    return model if model and Path(model).exists() else None


@contextmanager
def engine_running(
    engine: ExternalEngine, settings: EngineSettings, api_key: str | None = None, *, detached: bool = False
) -> Iterator[Running]:
    """Starts it with its stages on stderr, and makes sure that it speculates where it was asked to."""
    from slipstream.engines.session import require_speculation, running

    explain = explainer(engine)
    say(f"starting {engine.name} ({settings.method}) on port {settings.port}")
    with running(engine, settings, say, explain, api_key, detached=detached) as ready:
        with deaths_explained(ready):
            state = require_speculation(engine, ready.client, settings, explain)
        say(f"ready after {ready.ready_s:.1f} s; speculation: {state.evidence}")
        yield ready


@contextmanager
def deaths_explained(running: Running) -> Iterator[None]:
    """An engine that dies inside the block is reported with its last lines and what they mean."""
    try:
        yield
    except EngineRequestError as error:
        raise _died(running, error, explainer(running.engine)) from error


def _died(running: Running, error: EngineRequestError, explain: Explain) -> EngineError:
    """The request's error; with the engine's end and last lines where that was the cause."""
    import time

    time.sleep(0.3)  # a process that is just dying
    status = running.process.exit_code
    if status is None:
        return error
    said = "\n".join(f"  {line}" for line in running.process.last_lines(8))
    why = "\n".join(explain(running.process.log.read_text(errors="replace")))
    message = f"{running.engine.name} ended with status {status} while it was asked. Its last lines:\n{said}"
    return EngineRequestError(f"{message}\n{why}".rstrip(), error.status, error.partial_text)


def on_free_port(settings: EngineSettings) -> EngineSettings:
    """For engines that only live for a measurement."""
    from slipstream.engines.ports import free_port

    return replace(settings, port=free_port())
