"""doctor: does this pair work on this engine and machine, and if not, why?"""

from __future__ import annotations

from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.diagnosis.examine import Case, Diagnosis, examine
from slipstream.diagnosis.machine_checks import check_speed
from slipstream.diagnosis.runtime import check_running
from slipstream.engines import find_engine, find_folder
from slipstream.engines.client import Client
from slipstream.findings import Finding
from slipstream.loading import load
from slipstream.models import pull
from slipstream.tasks.options import DEFAULT_MODEL, DoctorOptions, RunningEngineOptions
from slipstream.tasks.reporter import SILENT, Reporter


def doctor(
    options: DoctorOptions = DoctorOptions(),
    running: RunningEngineOptions = RunningEngineOptions(),
    *,
    reporter: Reporter = SILENT,
) -> Diagnosis:
    """Says before the first token whether a target, a draft, an engine and this machine work together.

    `running.url` is an engine that runs: does it really speculate? Bad files are findings. Raises UsageError for
    invalid options, and EngineRequestError for an engine that does not answer.
    """
    engine = options.engine
    found = _check_running(engine, running.url, running.key()) if running.url else []
    case = Case(
        target=options.target,
        draft=options.draft,
        engine=find_folder(engine).name,
        config=options.config,
        log=options.log,
        context=options.context,
        batch=options.batch,
        sampling=Sampling(temperature=options.temperature),
        python=options.python or None,
    )
    result = examine(case, reporter.say)
    result.findings += found
    if running.url:
        result.checked.append(f"the running {case.engine}")
    if options.measure:
        result.findings += _measured(result, reporter)
    return result


def _check_running(name: str, url: str, api_key: str | None) -> list[Finding]:
    """What the engine at `url` says of its speculation."""
    engine, client = find_engine(name), Client(url, api_key)
    state = engine.speculation_state(client)
    return list(check_running(name, state, engine.read_speculation(client)))


def _measured(result: Diagnosis, reporter: Reporter) -> list[Finding]:
    """Runs the target, or the built-in model, for 24 tokens after a warm-up."""
    spec = result.case.target or DEFAULT_MODEL
    pull(spec, reporter.say)
    engine = load(spec, drafter="none")
    for tokens in (4, 24):
        done = engine.generate("Once upon a time", limits=Limits(max_tokens=tokens, ignore_eos=True)).result()
    seconds = done.stats.total_s - done.stats.ttft_s
    return check_speed(result.machine, seconds, 23, engine.target.info.weight_bytes)
