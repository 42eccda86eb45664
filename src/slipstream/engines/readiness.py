"""Waits until an engine is ready: shows its stage, has a time limit, and reports the last log lines if it fails."""

from __future__ import annotations

import time
from collections.abc import Callable

from slipstream.engines.client import Client
from slipstream.engines.process import EngineProcess, indented
from slipstream.errors import EngineStartError
from slipstream.parsing.log_patterns import StartLog

Say = Callable[[str], None]
Explain = Callable[[str], list[str]]  # from a log to explanations of the failure, best first
_POLL_S = 0.1


def wait_until_ready(
    process: EngineProcess,
    client: Client,
    readiness: StartLog,
    limit_s: float,
    say: Say = lambda line: None,
    explain: Explain = lambda log: [],
) -> float:
    """Returns the seconds it took. `say` is called with each new stage.

    Raises EngineStartError with the stage, the log's last lines and explanations if the engine exits or is not ready in
    time. The caller has to stop the process.
    """
    started, stage = time.monotonic(), "starting"
    while True:
        for line in process.new_lines():
            reached = readiness.stage_of(line)
            if reached and reached != stage:
                stage = reached
                say(stage)
        waited = time.monotonic() - started
        if process.exit_code is not None:
            raise _failed(process, f"exited with status {process.exit_code} while it was {stage}", explain)
        if client.is_ready(readiness.path):
            return waited
        if waited > limit_s:
            raise _failed(process, f"was not ready after {limit_s:g} s; the last stage: {stage}", explain)
        time.sleep(_POLL_S)


def _failed(process: EngineProcess, what: str, explain: Explain) -> EngineStartError:
    said = indented(process.last_lines() or ["(nothing)"])
    why = "\n".join(explain(process.log.read_text(errors="replace")))
    message = f"the engine {what}. Its last lines ({process.log}):\n{said}"
    return EngineStartError(f"{message}\n{why}" if why else message)
