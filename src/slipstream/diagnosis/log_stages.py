"""Starts that never finish: the last stage in the log, and what to try."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from slipstream.engines import EngineFolder
from slipstream.findings import Finding, rule
from slipstream.parsing.log_patterns import Stage
from slipstream.parsing.log_runs import LastRun
from slipstream.parsing.log_scan import Hit, first_hit, line_at

UNFINISHED = rule(
    "log-start-unfinished",
    "blocks",
    "The start did not finish, and there is no error",
    "{engine} did not report that it is ready. The last stage it reached: {stage}. {meaning}",
    "{fix}",
)
_ENDED = ("Shutting down", "Finished server process")
_IS_EAGER = ("enforce_eager=True", "--enforce-eager")


def unfinished_start(
    text: str, run: LastRun, engines: list[EngineFolder]
) -> Iterator[tuple[Hit, Callable[[str], Finding]]]:
    """The last stage of a start that neither finished nor failed.

    Nothing for a part of a log: without the beginning of the start it does not show how long the start took.
    """
    if run.ready is not None or not run.has_beginning or any(text.find(end, run.begin) >= 0 for end in _ENDED):
        return
    for engine in engines:
        begins = engine.log.start.first_marks if engine.log else ()
        stages = engine.log.start.stages if engine.log and any(mark in text for mark in begins) else ()
        reached = [
            (at, mark, stage) for stage in stages for mark in stage.marks if (at := text.rfind(mark, run.begin)) >= 0
        ]
        if reached:
            at, _, stage = max(reached, key=lambda found: (found[0], len(found[1])))
            yield Hit(at, line_at(text, at), {}), _maker(engine.name, stage, text)
            return


def _maker(engine: str, stage: Stage, text: str) -> Callable[[str], Finding]:
    steps, meaning = list(stage.steps), stage.meaning
    eager = [step for step in steps if "--enforce-eager" in step]
    if eager and first_hit(text, _IS_EAGER, None):
        steps = [step for step in steps if step not in eager]
        meaning += " Eager mode is already on, so compiling and CUDA graphs are not the cause."
    if "method='ngram'" in text or '"method": "ngram"' in text:
        meaning += " N-gram drafting loads no weights: start once without it to see whether it causes the hang."
    fix = "Try, in this order: " + "; ".join(steps) + "." if steps else "Start it again, and read the end of its log."
    return lambda evidence: UNFINISHED.finding(evidence, engine=engine, stage=stage.name, meaning=meaning, fix=fix)
