"""Session: runs an engine from start to end, and checks whether it speculates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from slipstream.cache import cache_folder
from slipstream.engines.client import Client
from slipstream.engines.driver import ExternalEngine
from slipstream.engines.engine_types import PLAIN, EngineSettings, SpeculationState, StartPlan
from slipstream.engines.http_generator import HttpGenerator
from slipstream.engines.ports import require_free_port
from slipstream.engines.process import EngineProcess, find_program, run_to_end
from slipstream.engines.readiness import Explain, Say, wait_until_ready
from slipstream.engines.secrets import redacted
from slipstream.errors import SilentFallbackError


@dataclass(frozen=True, slots=True)
class Running:
    """An engine that was started here and is ready."""

    engine: ExternalEngine
    settings: EngineSettings
    plan: StartPlan
    process: EngineProcess
    client: Client
    ready_s: float

    def generator(self, label: str, *, cold: bool = True) -> HttpGenerator:
        """Counters are only assigned to single answers if answers come one at a time."""
        return HttpGenerator(
            self.engine, self.client, label, cold=cold, counts_apart=self.settings.streams in (None, 1)
        )


def engine_folder(engine: ExternalEngine, port: int) -> Path:
    """The folder of an engine's files and log: one per port, since a port has one engine at a time."""
    return cache_folder("engines", f"{engine.name}-{port}")


@contextmanager
def running(
    engine: ExternalEngine,
    settings: EngineSettings,
    say: Say = lambda line: None,
    explain: Explain = lambda log: [],
    api_key: str | None = None,
    *,
    detached: bool = False,
) -> Iterator[Running]:
    """Starts the engine, waits until it is ready, and stops it and all its processes when the block ends.

    A `detached` engine keeps running after the block, unless the block fails. Raises EngineStartError (a port in use, a
    program that fails or hangs) with the log's last lines.
    """
    require_free_port(settings.host, settings.port)
    folder = engine_folder(engine, settings.port)
    plan = find_program(engine.plan(settings, folder))
    for note in plan.notes:  # for example what other machines have to run: the engine waits for them
        say(note)
    process = EngineProcess.start(plan, folder, detached=detached)
    try:
        client = Client(settings.url, api_key or settings.api_key, log=process.log)
        try:
            ready_s = wait_until_ready(process, client, engine.readiness, settings.start_limit_s, say, explain)
        finally:
            for name in plan.secret_files:
                (folder / name).unlink(missing_ok=True)
        for command in plan.after:
            say(" ".join(redacted(command)))
            run_to_end(command, plan, folder, settings.start_limit_s)
        yield Running(engine, settings, plan, process, client, ready_s)
    except BaseException:
        process.stop()
        raise
    if detached:
        process.release()
    else:
        process.stop()


def require_speculation(
    engine: ExternalEngine, client: Client, settings: EngineSettings, explain: Explain
) -> SpeculationState:
    """What the engine reports. Raises SilentFallbackError with the log's explanation if speculation was configured but
    is off.
    """
    state = engine.speculation_state(client)
    if settings.method == PLAIN or state.on is not False:
        return state
    why = "\n".join(explain(client.log_text())) or "Its log has no known explanation."
    asked = f"{engine.name} was configured for {settings.method} but silently runs without speculation"
    raise SilentFallbackError(f"{asked} ({state.evidence}).\n{why}")
