"""The live line of `slipstream launch`: tokens/s and acceptance from the engine's own counters."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from slipstream.errors import EngineError, EngineRequestError

if TYPE_CHECKING:
    from slipstream.engines.engine_types import Speculation
    from slipstream.engines.session import Running

_EVERY_S = 2.0


def watch(running: Running) -> None:
    """Shows figures until Ctrl-C. Raises EngineError with the engine's last lines if it exits by itself."""
    from rich.console import Console

    from slipstream.engines.process import indented

    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    try:
        before, then, shown = read(running), time.monotonic(), ""
        while running.process.exit_code is None:
            time.sleep(_EVERY_S)
            counters, now = read(running), time.monotonic()
            if counters is None:  # busy, or about to exit
                continue
            line = figures(counters.since(before) if before else counters, counters, now - then)
            if line != shown:
                console.print(f"\r{line}" if console.is_terminal else line, end="" if console.is_terminal else "\n")
            before, then, shown = counters, now, line
    except KeyboardInterrupt:
        console.print("\nstopping it")
        return
    said = indented(running.process.last_lines())
    raise EngineError(f"{running.engine.name} exited by itself (status {running.process.exit_code}):\n{said}")


def read(running: Running) -> Speculation | None:
    """The engine's counters; all zero if it has none, None if it does not respond now."""
    from slipstream.engines.engine_types import Speculation

    try:
        return running.engine.read_speculation(running.client) or Speculation()
    except EngineRequestError:
        return None


def figures(recent: Speculation, overall: Speculation, seconds: float) -> str:
    speed = "" if recent.num_tokens is None else f"{recent.num_tokens / seconds:.1f} tokens/s, "
    now = f"{recent.acceptance_rate:.0%} accepted now, " if recent.num_drafted else ""
    return f"{speed}{now}{overall.num_accepted} of {overall.num_drafted} drafted tokens accepted since the start"
