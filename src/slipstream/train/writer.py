"""Runs scripts on the engine: many streams at the same time, and a script goes on as soon as its text is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from slipstream.core.engine import Engine
from slipstream.core.generation import Generation
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.errors import SlipstreamError
from slipstream.train.scripts import Script, Wanted
from slipstream.train.shards import Text

Pulse = Callable[[int], None]  # called after each round with the tokens written so far; may raise to stop


def run_scripts(engine: Engine, scripts: Iterator[Script], streams: int, pulse: Pulse) -> list[list[Text]]:
    """What each script made, in their order. At most `streams` of them run at the same time."""
    made: dict[int, list[Text]] = {}
    running: dict[int, tuple[Script, Generation]] = {}
    num_started = num_written = 0
    while True:
        while len(running) < streams and (script := next(scripts, None)) is not None:
            _go_on(engine, num_started, script, None, running, made)
            num_started += 1
        if not running:
            return [made[i] for i in range(num_started)]
        engine.step()
        for index, (script, generation) in list(running.items()):
            if generation.stream.done:
                if generation.stream.error:
                    raise SlipstreamError(f"the target could not write: {generation.stream.error}")
                num_written += len(generation.tokens)
                _go_on(engine, index, script, generation.tokens, running, made)
        pulse(num_written)


def _go_on(
    engine: Engine,
    index: int,
    script: Script,
    written: list[int] | None,
    running: dict[int, tuple[Script, Generation]],
    made: dict[int, list[Text]],
) -> None:
    """Hands a script what was written, and starts what it asks for next."""
    try:
        wanted = next(script) if written is None else script.send(written)
    except StopIteration as end:
        running.pop(index, None)
        made[index] = end.value
        return
    running[index] = (script, _generation(engine, wanted))


def _generation(engine: Engine, wanted: Wanted) -> Generation:
    sampling = Sampling(temperature=wanted.temperature, seed=wanted.seed)
    return engine.generate(list(wanted.prompt), sampling, Limits(wanted.max_tokens))
