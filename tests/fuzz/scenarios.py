"""Scenarios: the ways in which the consumers of a case run. Each returns failures of its own, mostly none."""

from __future__ import annotations

import gc
import random
import signal
import threading
import time
from collections.abc import Callable

from fuzz.case import Case
from fuzz.checks import Failure, failed
from fuzz.plan import Plan

_THREADS_END_S = 60.0


def take_turns(case: Case) -> list[Failure]:
    """One thread reads all answers, a few tokens at a time; requests join and leave in the middle."""
    rng = random.Random(case.rng.randrange(1 << 30))
    joining, reading = list(case.plans), list[Plan]()
    while joining or reading:
        while joining and (not reading or rng.random() < 0.3):
            reading.append(plan := joining.pop(0))
            plan.consumer.start(case.engines[plan.engine_index])
        plan = rng.choice(reading)
        if not all(plan.consumer.advance() for _ in range(rng.choice([1, 1, 3, 10]))):
            reading.remove(plan)
    return []


def meddling(case: Case) -> list[Failure]:
    """Turns, while answers are cancelled and dropped in mid-round."""
    case.meddler.consumers = [plan.consumer for plan in case.plans]
    try:
        take_turns(case)
    finally:
        case.meddler.consumers = []
    return [failed("cancel in mid-round raised", error, "hook") for error in case.meddler.errors]


def signals(case: Case) -> list[Failure]:
    """Turns, while a timer's signal handler cancels answers. Only in the main thread; turns alone elsewhere."""
    if threading.current_thread() is not threading.main_thread():
        return take_turns(case)
    rng = random.Random(case.rng.randrange(1 << 30))
    errors: list[Exception] = []

    def handler(number: int, frame: object) -> None:
        try:
            rng.choice(case.plans).consumer.cancel()
        except Exception as error:
            errors.append(error)

    before = signal.signal(signal.SIGALRM, handler)
    timer = signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0002, 0.003), rng.uniform(0.0005, 0.005))
    try:
        take_turns(case)
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, before)
    return [failed("cancel from a signal handler raised", error, "handler") for error in errors]


def threads(case: Case) -> list[Failure]:
    """Several threads read, each its own answers, while another one cancels some."""
    rng = random.Random(case.rng.randrange(1 << 30))
    count = rng.randint(2, 5)
    failures: list[Failure] = []
    workers = [_thread(lambda mine=case.plans[i::count]: _read_all(case, mine), failures) for i in range(count)]
    chosen = [plan for plan in case.plans if rng.random() < 0.3]
    workers.append(_thread(lambda: _cancel_all(chosen, rng), failures))
    limit = time.monotonic() + _THREADS_END_S
    for worker in workers:
        worker.join(max(0.0, limit - time.monotonic()))
    stuck = [worker.name for worker in workers if worker.is_alive()]
    return [*failures, *(Failure("thread does not end", name) for name in stuck)]


def two_engines(case: Case) -> list[Failure]:
    """Two engines on one model: in turns, or in threads where the world can do that."""
    return threads(case) if case.world.is_thread_safe and case.seed % 2 else take_turns(case)


SCENARIOS: dict[str, Callable[[Case], list[Failure]]] = {
    "turns": take_turns,
    "meddling": meddling,
    "signals": signals,
    "threads": threads,
    "two engines": two_engines,
}


def _read_all(case: Case, plans: list[Plan]) -> None:
    for plan in plans:
        plan.consumer.start(case.engines[plan.engine_index])
    for plan in plans:
        plan.consumer.run()


def _cancel_all(plans: list[Plan], rng: random.Random) -> None:
    for plan in plans:
        time.sleep(rng.uniform(0, 0.003))
        plan.consumer.cancel()
    gc.collect()


def _thread(work: Callable[[], None], failures: list[Failure]) -> threading.Thread:
    def guarded() -> None:
        try:
            work()
        except Exception as error:
            failures.append(failed("thread raised", error, threading.current_thread().name))

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    return thread
