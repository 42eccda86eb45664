"""Stress: many threads ask one engine for short answers, and cancel, drop and fail at random.

No text may be wrong, nothing may be left behind, and memory may not grow once the run is half over.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fuzz import checks
from fuzz.checks import Failure, Judge
from fuzz.consumer import Consumer, ConsumerError
from fuzz.oracle import Answer, plain_answer
from fuzz.plan import Plan
from fuzz.request import Request, RequestMaker
from fuzz.watchdog import hard_limit
from fuzz.world import World, leaks, models_inside
from fuzz.worlds import make_worlds, why_missing
from slipstream.core.engine import Engine
from slipstream.drafters import make_drafter
from slipstream.policy import make_policy

MAX_GROWTH_MIB = 24.0  # of resident memory, from the middle of a run to its end
_MAX_FAILURES = 50


@dataclass(frozen=True)
class StressSettings:
    """`num_requests` is for each thread. `limit_s` is wall time; a run that takes longer is ended as a hang."""

    backend: str = "fake"
    num_threads: int = 8
    num_requests: int = 2000
    seed: int = 0
    drafter: str = "suffix(width=2)"
    policy: str = "fixed(4)"
    limit_s: float = 3600.0


@dataclass
class StressResult:
    settings: StressSettings
    num_requests: int = 0
    num_cancelled: int = 0
    seconds: float = 0.0
    growth_mib: float = 0.0
    peak_mib: float = 0.0
    failures: list[Failure] = field(default_factory=list)


class Stress:
    """One run. A pool of requests is answered by the oracle first, and then asked for over and over."""

    def __init__(self, settings: StressSettings, num_different: int = 60) -> None:
        self._settings = settings
        rng = random.Random(settings.seed)
        self._world = _roomy_world(settings.backend, rng)
        maker = RequestMaker(rng, self._world.bounds)
        requests = [maker.request() for _ in range(2 * num_different)]
        self._requests = [request for request in requests if request.verifier == "matching"][:num_different]
        self._answers = {id(request): self._oracle(request) for request in self._requests}
        drafter = make_drafter(settings.drafter, self._world.sources["same"])
        options = self._world.engine_options
        policy = make_policy(settings.policy)
        self._engine = Engine(self._world.target, self._world.tokenizer, drafter, policy, **options)  # type: ignore
        self._judge = Judge(
            self._world.tokenizer, self._world.bounds.vocab, self._world.bounds.context_length,  # type: ignore[arg-type]
            lambda request: self._answers[id(request)],
        )  # fmt: skip
        self._result = StressResult(settings)
        self._lock = threading.Lock()
        self._memory: list[tuple[int, float]] = []  # requests done, resident MiB

    def run(self) -> StressResult:
        started = time.monotonic()
        threads = [
            threading.Thread(target=self._ask, args=(i,), daemon=True) for i in range(self._settings.num_threads)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._result.seconds = time.monotonic() - started
        gc.collect()
        while self._engine.step():
            pass
        self._check_end()
        return self._result

    def _oracle(self, request: Request) -> Answer:
        world = self._world
        with world.logits() as logits:
            return plain_answer(request, logits, world.tokenizer, world.bounds.context_length)  # type: ignore[arg-type]

    def _ask(self, index: int) -> None:
        rng = random.Random(f"{self._settings.seed}/{index}")
        for _ in range(self._settings.num_requests):
            plan = self._plan(rng)
            _read(self._engine, plan.consumer, rng)
            failures = self._judge.failures(plan)
            with self._lock:
                self._note(plan, failures)
                if len(self._result.failures) > _MAX_FAILURES:
                    return

    def _plan(self, rng: random.Random) -> Plan:
        request = rng.choice(self._requests)

        def submit(engine: Engine):  # type: ignore[no-untyped-def]
            return engine.generate(request.prompt, request.sampling, request.limits)

        leave = rng.choice(["cancel", "close", "drop", "drop in a cycle", "raise"]) if rng.random() < 0.3 else None
        return Plan(request, Consumer(submit, leave, rng.choice([1, 2, 5])), self._answers[id(request)])

    def _note(self, plan: Plan, failures: list[Failure]) -> None:
        result = self._result
        result.num_requests += 1
        result.num_cancelled += plan.consumer.was_cancelled
        result.failures += failures
        if result.num_requests % 100 == 0:
            self._memory.append((result.num_requests, resident_mib()))
        if result.num_requests % 2000 == 0:
            print(f"{result.num_requests} requests, {len(result.failures)} failures, "
                  f"{self._memory[-1][1]:.0f} MiB resident", file=sys.stderr, flush=True)  # fmt: skip

    def _check_end(self) -> None:
        failures = self._result.failures
        control = Plan(self._requests[0], Consumer(lambda engine: engine.generate(
            self._requests[0].prompt, self._requests[0].sampling, self._requests[0].limits)),
            self._answers[id(self._requests[0])])  # fmt: skip
        control.consumer.start(self._engine)
        control.consumer.run()
        failures += self._judge.failures(control)
        failures += checks.idle([self._engine])
        models = [*self._world.models(), *models_inside(self._engine.drafter)]
        failures += [Failure("cache not given back", leak) for model in models for leak in leaks(model)]
        self._result.peak_mib = max((mib for _, mib in self._memory), default=0.0)
        second_half = [mib for done, mib in self._memory if done >= self._result.num_requests / 2]
        if len(second_half) > 1:
            self._result.growth_mib = second_half[-1] - second_half[0]
        if self._result.growth_mib > MAX_GROWTH_MIB:
            failures.append(Failure("memory grows", f"{self._result.growth_mib:.1f} MiB over the second half"))


def _read(engine: Engine, consumer: Consumer, rng: random.Random) -> None:
    """Reads one answer; at times from inside code that fails for its own reasons."""
    consumer.start(engine)
    try:
        while consumer.advance():
            if rng.random() < 0.002:
                raise ConsumerError("the code around the answer failed")
    except ConsumerError:
        consumer.drop()


def _roomy_world(backend: str, rng: random.Random) -> World:
    worlds = make_worlds(backend)
    while not _suits(world := worlds.world(rng)):
        pass
    return world


def _suits(world: World) -> bool:
    """Room for all streams, different answers, and no fake that remembers everything it ever held."""
    return world.is_roomy and world.bounds.vocab >= 9 and not getattr(world.target, "remembers", False)


def resident_mib() -> float:
    """Resident memory of this process; 0 where the system does not tell."""
    status = Path("/proc/self/statm")
    return int(status.read_text().split()[1]) * 4096 / 2**20 if status.exists() else 0.0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="fuzz stress", description=__doc__)
    parser.add_argument("--backend", default="fake", help="fake, torch, cuda or llamacpp (fake)")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--requests", type=int, default=2000, help="of each thread (2000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--drafter", default="suffix(width=2)", help="suffix(width=2); on torch also model, early-exit …"
    )
    parser.add_argument("--policy", default="fixed(4)")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds, then the run counts as a hang (3600)")
    parser.add_argument("--json", metavar="FILE", type=Path)
    options = parser.parse_args(arguments)
    if reason := why_missing(options.backend):
        print(f"{options.backend} skipped: {reason}", file=sys.stderr)
        return 0
    settings = StressSettings(options.backend, options.threads, options.requests, options.seed, options.drafter,
                              options.policy, options.limit)  # fmt: skip
    with hard_limit(settings.limit_s):
        result = Stress(settings).run()
    print(f"{result.num_requests} requests in {settings.num_threads} threads, {result.num_cancelled} cancelled, "
          f"{result.seconds:.1f} s, peak {result.peak_mib:.0f} MiB, {result.growth_mib:+.1f} MiB over the second half "
          f"(limit {MAX_GROWTH_MIB:.0f}), {len(result.failures)} failures")  # fmt: skip
    for failure in result.failures[:20]:
        print(f"FAIL {failure.check} | {failure.detail}")
    if options.json:
        options.json.write_text(json.dumps(asdict(result), indent=1, default=str) + "\n")
    return int(bool(result.failures))
