"""run_case: makes a case from its seed, runs it and checks everything that has to hold after it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field

from fuzz import checks
from fuzz.case import Case, CaseMaker
from fuzz.checks import Failure, Judge
from fuzz.consumer import Consumer
from fuzz.plan import Plan
from fuzz.scenarios import SCENARIOS
from fuzz.watchdog import CaseTimeoutError, time_limit
from fuzz.watched import WatchedDrafter
from fuzz.world import leaks, models_inside
from fuzz.worlds import Worlds
from slipstream.core.engine import Engine

_MAX_ROUNDS = 20_000  # after the consumers are gone
_SECONDS = {"fake": 3.0, "cuda": 120.0}  # of processor time for one case; on a GPU kernels may have to be compiled
_DEFAULT_SECONDS = 8.0


@dataclass
class CaseResult:
    """`description` says what was in the case; it is empty where the case could not be made."""

    seed: int
    scenario: str
    num_generations: int
    failures: list[Failure] = field(default_factory=list)
    description: str = ""


def run_case(
    seed: int, worlds: Worlds, scenarios: tuple[str, ...] = (), announce: Callable[[Case], None] = lambda case: None
) -> CaseResult:
    """Never raises for what the product does: it all becomes failures.

    `scenarios` restricts the choice. `announce` hears of the case before it runs.
    """
    result = CaseResult(seed, "making", 0)
    try:
        with time_limit(_SECONDS.get(worlds.backend, _DEFAULT_SECONDS)):
            case = CaseMaker(seed, worlds.backend, worlds.world, scenarios).make()
            result.scenario, result.description = case.scenario, case.describe()
            result.num_generations = len(case.plans) + 1
            announce(case)
            result.failures += _run(case)
    except CaseTimeoutError as timeout:
        result.failures.append(checks.failed("hang", timeout, result.scenario))
    except Exception as error:
        result.failures.append(checks.failed("case raised", error, result.scenario))
    if any(not failure.check.startswith("bad request") for failure in result.failures):
        worlds.discard()
    return result


def _run(case: Case) -> list[Failure]:
    world = case.world
    found = SCENARIOS[case.scenario](case)
    found += _settle(case)
    bounds = world.bounds
    judge = Judge(world.tokenizer, bounds.vocab, bounds.context_length, case.answer_of, world.capacity)  # type: ignore
    for plan in case.plans:
        found += judge.failures(plan, refusals_allowed=case.scenario == "two engines")
    found += checks.idle(case.engines)
    found += checks.policies_work(case.engines)
    found += _control(case, judge)
    found += checks.drafters_released(case.drafters)
    inside = [model for drafter in case.drafters for model in models_inside(drafter)]
    for model in {id(model): model for model in [*world.models(), *inside]}.values():
        found += [Failure("cache not given back", leak) for leak in leaks(model)]
    return found


def _settle(case: Case) -> list[Failure]:
    """Ends what consumers have left behind, and lets answers that nobody reads run to their end."""
    for plan in case.plans:
        if not plan.consumer.has_read_all:
            plan.consumer.drop(in_cycle=case.seed % 2 == 0)
    gc.collect()
    for engine in case.engines:
        try:
            rounds = 0
            while engine.step() and rounds < _MAX_ROUNDS:
                rounds += 1
        except Exception as error:
            return [checks.failed("step raised", error, "after the consumers")]
    return []


def _control(case: Case, judge: Judge) -> list[Failure]:
    """Each engine still answers, and still asks its drafter if that one works."""
    found: list[Failure] = []
    for index, engine in enumerate(case.engines):
        request, stream_ids = case.control, list[int]()

        def submit(engine=engine, request=request, stream_ids=stream_ids):  # type: ignore[no-untyped-def]
            generation = engine.generate(request.prompt, request.sampling, request.limits)
            stream_ids.append(generation.stream.id)
            return generation

        plan = Plan(request, Consumer(submit), case.answer_of(request), index, "of the control request")
        plan.consumer.start(engine)
        plan.consumer.run()
        allowed = case.scenario == "two engines"
        found += [Failure(f"control: {f.check}", f.detail) for f in judge.failures(plan, refusals_allowed=allowed)]
        if not found and stream_ids:
            found += _drafter_was_asked(case, engine, stream_ids[0], len(plan.consumer.ids))
    return found


def _drafter_was_asked(case: Case, engine: Engine, stream_id: int, num_tokens: int) -> list[Failure]:
    drafter = engine.drafter
    if not isinstance(drafter, WatchedDrafter):
        return []
    if not drafter.begun[stream_id]:
        return [Failure("control: working drafter not begun", drafter.name)]
    if engine.target.info.runs_ahead:
        return []  # there drafters are asked now and then while nothing pays, which a short answer may not see
    if case.policy.startswith("fixed") and case.policy != "fixed(0)" and num_tokens > 3:
        return [] if drafter.proposed[stream_id] else [Failure("control: working drafter not asked", drafter.name)]
    return []
