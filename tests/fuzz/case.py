"""Case: engines, drafters and requests, all of them decided by one seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fuzz.bad_request import random_bad_request
from fuzz.broken_drafter import FAULTS, BrokenDrafter
from fuzz.consumer import LEAVING, Consumer
from fuzz.meddler import Meddler
from fuzz.oracle import Answer, plain_answer
from fuzz.plan import Plan
from fuzz.prophet import Prophet
from fuzz.request import Request, RequestMaker
from fuzz.watched import Hook, WatchedDrafter, WatchedModel, WatchedTokenizer, no_hook
from fuzz.world import World
from slipstream.core.engine import Engine
from slipstream.core.generation import Generation
from slipstream.core.stream import Drafter
from slipstream.drafters import make_drafter
from slipstream.policy import make_policy

_POLICIES = ("auto", "auto", "auto(3)", "fixed(0)", "fixed(1)", "fixed(3)", "fixed(8)", "fixed(20)")
_SCENARIOS = {"turns": 45, "meddling": 20, "signals": 8, "threads": 17, "two engines": 10}


@dataclass
class Case:
    """`drafters` are the working ones that engines and requests use; `broken` names the faults of the others."""

    seed: int
    scenario: str
    world: World
    rng: random.Random
    engines: list[Engine]
    policy: str
    plans: list[Plan]
    drafters: list[WatchedDrafter]
    broken: list[str]
    meddler: Meddler
    control: Request
    answers: dict[int, Answer] = field(default_factory=dict)  # of requests, by identity

    def answer_of(self, request: Request) -> Answer:
        """The oracle's answer."""
        if id(request) not in self.answers:
            with self.world.logits() as logits:
                self.answers[id(request)] = plain_answer(
                    request,
                    logits,
                    self.world.tokenizer,
                    self.world.bounds.context_length,  # type: ignore[arg-type]
                )
        return self.answers[id(request)]

    def describe(self) -> str:
        parts = [self.scenario, self.world.name, self.policy, *(d.name for d in self.drafters), *self.broken]
        bad = [plan.request.name for plan in self.plans if not plan.is_good]  # type: ignore[union-attr]
        return "; ".join(parts + [f"bad: {name}" for name in bad])


class FakeClock:
    """Seconds that the seed decides, so that what `auto` learns can be replayed."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = random.Random(rng.randrange(1 << 30))
        self._now = 0.0

    def __call__(self) -> float:
        self._now += self._rng.expovariate(1000.0)
        return self._now


class CaseMaker:
    """Puts one case together. `scenarios` restricts the choice."""

    def __init__(self, seed: int, backend: str, world_of: Callable[[random.Random], World], scenarios: tuple[str, ...]):
        self._seed = seed
        self._rng = random.Random(f"{backend}/{seed}")
        self._world = world_of(self._rng)
        names = [name for name in scenarios or _SCENARIOS if self._is_possible(name)] or ["turns"]
        self._scenario = self._rng.choices(names, [_SCENARIOS[name] for name in names])[0]
        self._meddler = Meddler(self._rng)
        self._drafters: list[WatchedDrafter] = []
        self._prophets: list[Prophet] = []
        self._broken: list[str] = []
        self._requests = RequestMaker(self._rng, self._world.bounds)

    def make(self) -> Case:
        """Computes the expected answers too."""
        policy = self._rng.choice(_POLICIES)
        engines = [self._engine(policy) for _ in range(2 if self._scenario == "two engines" else 1)]
        # No drafter works for two engines: drafters are not promised to be safe in several threads.
        spares = [[None, *(self._drafter() for _ in range(2))] for _ in engines]
        plans = [self._plan(engines, spares) for _ in range(self._rng.randint(1, 9))]
        case = Case(
            self._seed, self._scenario, self._world, self._rng, engines, policy, plans, self._drafters, self._broken,
            self._meddler, self._requests.control(),
        )  # fmt: skip
        for plan in plans:
            if isinstance(plan.request, Request) and plan.request.verifier == "matching":
                plan.expected = case.answer_of(plan.request)
                for prophet in self._prophets:
                    prophet.answers[tuple(plan.request.prompt), id(plan.request.sampling)] = plan.expected
        return case

    def _is_possible(self, scenario: str) -> bool:
        return scenario != "two engines" or self._world.is_roomy

    def _hook(self) -> Hook:
        return self._meddler if self._scenario == "meddling" else no_hook

    def _engine(self, policy: str) -> Engine:
        world, hook = self._world, self._hook()
        target = WatchedModel(world.target, hook) if self._scenario == "meddling" else world.target
        texts = WatchedTokenizer(world.tokenizer, hook) if self._scenario == "meddling" else world.tokenizer
        drafter = self._drafter() if self._rng.random() < 0.9 else None
        clock = FakeClock(self._rng)
        return Engine(target, texts, drafter, make_policy(policy), clock=clock, **world.engine_options)  # type: ignore

    def _drafter(self) -> Drafter:
        """A built-in drafter, one that knows the answers, or a broken one of either kind."""
        rng = self._rng
        if rng.random() < 0.35:
            self._broken.append(fault := rng.choice([*FAULTS, "draft model nan"]))
            if fault != "draft model nan" or "nan" not in self._world.sources:
                return BrokenDrafter(self._working(), fault, rng)
            spec = rng.choice(["model", "model(n_parallel=3)", "chained:model,ngram"])
            return make_drafter(spec, self._world.sources["nan"])  # type: ignore[return-value]
        watched = WatchedDrafter(self._working(), self._hook())
        self._drafters.append(watched)
        return watched

    def _working(self) -> Drafter:
        rng = self._rng
        if rng.random() < 0.5:
            prophet = Prophet(rng, self._world.bounds.vocab, rng.choice([0.3, 0.7, 0.95, 1.0]), rng.random() < 0.6)
            self._prophets.append(prophet)
            return prophet
        kind, _, spec = rng.choice(self._world.specs).partition(":")
        return make_drafter(spec, self._world.sources[kind])  # type: ignore[return-value]

    def _plan(self, engines: list[Engine], spares: list[list[Drafter | None]]) -> Plan:
        rng = self._rng
        leave = rng.choice(LEAVING) if rng.random() < 0.3 else None
        leave_after, engine_index = rng.choice([1, 1, 2, 5, 9]), rng.randrange(len(engines))
        if rng.random() < 0.15:
            bad = random_bad_request(rng, self._requests.control().prompt)
            return Plan(bad, Consumer(bad.submit, leave, leave_after), engine_index=engine_index)
        request = self._requests.request()
        own: dict[str, Any] = {"drafter": rng.choice(spares[engine_index])} if rng.random() < 0.3 else {}
        used = own["drafter"] if own else engines[engine_index].drafter
        name = used.name if used is not None else "none"
        return Plan(
            request, Consumer(_submit(request, own), leave, leave_after), engine_index=engine_index, drafter_name=name
        )


def _submit(request: Request, own: dict[str, Any]) -> Callable[[Engine], Generation]:
    return lambda engine: engine.generate(
        request.prompt, request.sampling, request.limits, verifier=request.verifier, **own
    )
