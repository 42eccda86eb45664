"""Starts that never finish: the last stage in the log, and what to try."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slipstream.diagnosis.log_signs import shows_work
from slipstream.diagnosis.log_unknown import LONGEST
from slipstream.engines import EngineFolder
from slipstream.findings import Finding, rule
from slipstream.parsing.log_patterns import Stage
from slipstream.parsing.log_runs import LastRun
from slipstream.parsing.log_scan import Hit, Located, first_hit, line_at

UNFINISHED = rule(
    "log-start-unfinished",
    "blocks",
    "The start did not finish, and there is no error",
    "{engine} did not report that it is ready. The last stage it reached: {stage}. {meaning}",
    "{fix}",
)
_WAITS_MEANING = "What it waits for hangs, has ended, or takes very long; or the log was cut off here."
_WAITS_FIX = (
    "Read the lines of the process that is waited for, and look at nvidia-smi and top: if GPU, CPU or disk are busy, "
    "it still works. With several GPUs or machines, NCCL_DEBUG=INFO shows whether they can communicate (then "
    "NCCL_P2P_DISABLE=1, --shm-size 16g in a container, NCCL_SOCKET_IFNAME). Start once without speculation."
)
_ENDED = ("Shutting down", "Finished server process")
_WAITING = re.compile(
    r"(?i)\b(?:still |keep )?waiting (?:for|on|until)\b|not (?:yet )?ready\b.{0,40}(?:retry|wait|again)|"
    r"\bhas(?:n't| not) (?:yet )?(?:started|responded|become ready)|status=.llm server (?:not responding|loading)"
)
_CONNECTING = re.compile(
    r"using nccl==|distributed_init_method=|backend=nccl|Init torch distributed begin|NCCL INFO |rdzv_endpoint|"
    r"custom_all_reduce|init_process_group|Connecting to existing Ray cluster"
)
_LAST_LINES = 40
_FENCE = "```"
_BELOW_THE_LOG = re.compile(
    r"(?i)```|~~~|</?\w+>|(?:many )?(?:thanks|thank you|thx|please|any (?:help|ideas?|hints?))\b"
)
_SHAPE = re.compile(r"\d+")
_IS_EAGER = ("enforce_eager=True", "--enforce-eager")


def unfinished_start(text: str, run: LastRun, engines: list[EngineFolder]) -> Iterator[Located]:
    """The last stage of a start that neither finished nor failed.

    Without the beginning of the start, only a log that ends with waiting tells something: else it may be a part.
    """
    if run.ready is not None or any(text.find(end, run.begin) >= 0 for end in _ENDED):
        return
    if not run.has_beginning:
        yield from _waiting_at_the_end(text)
        return
    for engine in engines:
        begins = engine.log.start.first_marks if engine.log else ()
        stages = engine.log.start.stages if engine.log and any(mark in text for mark in begins) else ()
        reached = [
            (at, mark, stage) for stage in stages for mark in stage.marks if (at := text.rfind(mark, run.begin)) >= 0
        ]
        if reached and not _may_work_as_library(text[run.begin :], engine):
            at, _, stage = max(reached, key=lambda found: (found[0], len(found[1])))
            yield Located(Hit(at, line_at(text, at), {}), _unfinished(engine.name, stage, text))
            return


def _may_work_as_library(run: str, engine: EngineFolder) -> bool:
    """Whether a program may work with the engine, of which no line says that it is ready."""
    start = engine.log.start if engine.log else None
    if start is None or not start.library or any(mark in run for mark in start.begins):
        return False
    return any(mark in run for mark in start.library_ready) or shows_work(run)


def _waiting_at_the_end(text: str) -> Iterator[Located]:
    """A last line that waits for something, or one about connecting GPUs. What a report says below the log is none."""
    end = text.rfind(_FENCE) if text.count(_FENCE) % 2 == 0 else -1
    output = text if end < 0 else text[:end]
    lines = [line[:LONGEST].strip() for line in output[-_LAST_LINES * LONGEST :].splitlines() if line.strip()]
    while lines and _BELOW_THE_LOG.match(lines[-1]):
        lines.pop()
    last = lines[-1] if lines else ""
    times = sum(_SHAPE.sub("0", line) == _SHAPE.sub("0", last) for line in lines[-_LAST_LINES:])
    waits = bool(_WAITING.search(last))
    if not waits and not _CONNECTING.search(last):
        return
    repeated = f" ({times} times the same line)" if times > 1 else ""
    stage = f"waiting{repeated}" if waits else "connecting the processes of the GPUs"
    finding = UNFINISHED.finding(engine="The engine", stage=stage, meaning=_WAITS_MEANING, fix=_WAITS_FIX)
    yield Located(Hit(text.rfind(last), last, {}), finding)


def _unfinished(engine: str, stage: Stage, text: str) -> Finding:
    steps, meaning = list(stage.steps), stage.meaning
    eager = [step for step in steps if "--enforce-eager" in step]
    if eager and first_hit(text, _IS_EAGER, None):
        steps = [step for step in steps if step not in eager]
        meaning += " Eager mode is already on, so compiling and CUDA graphs are not the cause."
    if "method='ngram'" in text or '"method": "ngram"' in text:
        meaning += " N-gram drafting loads no weights: start once without it to see whether it causes the hang."
    fix = "Try, in this order: " + "; ".join(steps) + "." if steps else "Start it again, and read the end of its log."
    return UNFINISHED.finding(engine=engine, stage=stage.name, meaning=meaning, fix=fix)
