"""Slipstream: language models answer faster without changing a word.

import slipstream

engine = slipstream.load("smollm2-135m", drafter="suffix")
for token in engine.generate([{"role": "user", "content": "Hello!"}], max_tokens=64):
    print(token.text, end="")

What is in `__all__` is the API (docs/api.md); everything else is private.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names as in `_HOMES`; tests/unit/test_public_api.py compares them
    from slipstream.backends import MachineOptions
    from slipstream.backends.llamacpp.options import LlamaCppOptions
    from slipstream.backends.torch.options import TorchOptions
    from slipstream.core.engine import Engine
    from slipstream.core.generation import Generation
    from slipstream.core.policy import Ask, Policy, PolicyReport, RoundOutcome, RoundPlan, RoundView
    from slipstream.core.sampling import Sampling
    from slipstream.core.stats import Stats
    from slipstream.core.stream import Drafter, Limits, Observation, RequestOptions, Stream, Token
    from slipstream.core.tree import DraftTree
    from slipstream.core.verify import Verifier
    from slipstream.diagnosis.examine import Diagnosis
    from slipstream.drafters import DraftSources
    from slipstream.errors import (
        CapacityError,
        ContextFullError,
        DamagedModelError,
        EngineError,
        EngineRequestError,
        EngineStartError,
        MissingDependencyError,
        ModelError,
        ModelNotFoundError,
        NonFiniteLogitsError,
        SilentFallbackError,
        SlipstreamError,
        UnfinishedBenchError,
        UnsupportedModelError,
        UsageError,
    )
    from slipstream.findings import BlockedError, Finding
    from slipstream.loading import LoadedModel, load, load_model
    from slipstream.measurement.results import BenchResult
    from slipstream.measurement.tune import TuneResult
    from slipstream.policy import AutoPolicy, FixedPolicy
    from slipstream.server.settings import ServeOptions
    from slipstream.tasks.audit import AuditResult, audit
    from slipstream.tasks.bench import bench
    from slipstream.tasks.doctor import doctor
    from slipstream.tasks.launch import Launched, launch
    from slipstream.tasks.options import (
        AuditOptions,
        BenchOptions,
        ConcurrencyOptions,
        DoctorOptions,
        EngineChoice,
        EngineOptions,
        LaunchOptions,
        ModelOptions,
        PairsOptions,
        PlanOptions,
        RunningEngineOptions,
        SamplingOptions,
        TuneOptions,
        WorkloadOptions,
    )
    from slipstream.tasks.pairs import ModelGroups, RankedDrafts, pairs
    from slipstream.tasks.plan import PlanResult, plan
    from slipstream.tasks.reporter import Reporter
    from slipstream.tasks.serve import serve
    from slipstream.tasks.tune import tune

__version__ = "0.1.0"

__all__ = [
    "Ask", "AuditOptions", "AuditResult", "AutoPolicy", "BenchOptions", "BenchResult", "BlockedError", "CapacityError",
    "ConcurrencyOptions", "ContextFullError", "DamagedModelError", "Diagnosis", "DoctorOptions", "DraftSources",
    "DraftTree", "Drafter", "Engine", "EngineChoice", "EngineError", "EngineOptions", "EngineRequestError",
    "EngineStartError", "Finding", "FixedPolicy", "Generation", "LaunchOptions", "Launched", "Limits",
    "LlamaCppOptions", "LoadedModel", "MachineOptions", "MissingDependencyError", "ModelError", "ModelGroups",
    "ModelNotFoundError", "ModelOptions", "NonFiniteLogitsError", "Observation", "PairsOptions", "PlanOptions",
    "PlanResult", "Policy", "PolicyReport", "RankedDrafts", "Reporter", "RequestOptions", "RoundOutcome", "RoundPlan",
    "RoundView", "RunningEngineOptions", "Sampling", "SamplingOptions", "ServeOptions", "SilentFallbackError",
    "SlipstreamError", "Stats", "Stream", "Token", "TorchOptions", "TuneOptions", "TuneResult", "UnfinishedBenchError",
    "UnsupportedModelError", "UsageError", "Verifier", "WorkloadOptions", "audit", "bench", "doctor", "launch", "load",
    "load_model", "pairs", "plan", "serve", "tune",
]  # fmt: skip

_HOMES = {
    "backends": "MachineOptions",
    "backends.llamacpp.options": "LlamaCppOptions",
    "backends.torch.options": "TorchOptions",
    "core.engine": "Engine",
    "core.generation": "Generation",
    "core.policy": "Ask Policy PolicyReport RoundOutcome RoundPlan RoundView",
    "core.sampling": "Sampling",
    "core.stats": "Stats",
    "core.stream": "Drafter Limits Observation RequestOptions Stream Token",
    "core.tree": "DraftTree",
    "core.verify": "Verifier",
    "diagnosis.examine": "Diagnosis",
    "drafters": "DraftSources",
    "errors": "CapacityError ContextFullError DamagedModelError EngineError EngineRequestError EngineStartError "
    "MissingDependencyError ModelError ModelNotFoundError NonFiniteLogitsError SilentFallbackError SlipstreamError "
    "UnfinishedBenchError UnsupportedModelError UsageError",
    "findings": "BlockedError Finding",
    "loading": "LoadedModel load load_model",
    "measurement.results": "BenchResult",
    "measurement.tune": "TuneResult",
    "policy": "AutoPolicy FixedPolicy",
    "server.settings": "ServeOptions",
    "tasks.audit": "AuditResult audit",
    "tasks.bench": "bench",
    "tasks.doctor": "doctor",
    "tasks.launch": "Launched launch",
    "tasks.options": "AuditOptions BenchOptions ConcurrencyOptions DoctorOptions EngineChoice EngineOptions "
    "LaunchOptions ModelOptions PairsOptions PlanOptions RunningEngineOptions SamplingOptions TuneOptions "
    "WorkloadOptions",
    "tasks.pairs": "ModelGroups RankedDrafts pairs",
    "tasks.plan": "PlanResult plan",
    "tasks.reporter": "Reporter",
    "tasks.serve": "serve",
    "tasks.tune": "tune",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}


if not TYPE_CHECKING:  # type checkers would take any name for a public one

    def __getattr__(name: str) -> Any:
        """Loads the public names when they are asked for: `import slipstream` stays quick and needs no torch."""
        if name in _HOME_OF:
            return getattr(import_module(f"slipstream.{_HOME_OF[name]}"), name)
        raise AttributeError(f"module 'slipstream' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
