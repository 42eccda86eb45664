"""What users may rely on: the exact names, found where type checkers look for them, loaded when they are asked for."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import slipstream

PUBLIC = {
    "load and ask": """
        load load_model LoadedModel Engine Generation Token Sampling Limits Stats Verifier
        MachineOptions TorchOptions LlamaCppOptions
    """,
    "drafters and policies": """
        Drafter DraftSources DraftTree Observation RequestOptions Stream
        Policy PolicyReport RoundPlan RoundView RoundOutcome Ask AutoPolicy FixedPolicy
    """,
    "tasks": "audit bench doctor launch pairs plan serve tune",
    "options of tasks": """
        ModelOptions WorkloadOptions SamplingOptions BenchOptions ConcurrencyOptions TuneOptions AuditOptions
        DoctorOptions PlanOptions PairsOptions EngineOptions EngineChoice LaunchOptions RunningEngineOptions Reporter
        ServeOptions
    """,
    "results of tasks": """
        AuditResult BenchResult Diagnosis Finding Launched ModelGroups RankedDrafts PlanResult TuneResult
    """,
    "errors": """
        SlipstreamError UsageError ModelError ModelNotFoundError DamagedModelError UnsupportedModelError
        NonFiniteLogitsError BlockedError ContextFullError CapacityError UnfinishedBenchError MissingDependencyError
        EngineError EngineStartError SilentFallbackError EngineRequestError
    """,
}
NAMES = " ".join(PUBLIC.values()).split()
RESULTS = [*PUBLIC["results of tasks"].split(), "Generation", "Stats", "PolicyReport"]
SOURCE = Path(slipstream.__file__)
API_PAGE = SOURCE.parents[2] / "docs" / "api.md"


def test_these_are_all_the_public_names():
    assert sorted(slipstream.__all__) == sorted(NAMES)
    assert sorted(dir(slipstream)) == sorted([*NAMES, "__version__"])


def test_type_checkers_see_the_same_names_from_the_same_modules():
    block = next(node for node in ast.parse(SOURCE.read_text()).body if isinstance(node, ast.If))
    homes = {alias.name: node.module for node in block.body for alias in node.names}
    assert sorted(homes) == sorted(NAMES)
    for name, module in homes.items():
        assert getattr(slipstream, name) is getattr(import_module(module), name)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = slipstream.nonsense


def test_no_module_hides_a_public_name():
    modules = {path.stem for path in SOURCE.parent.iterdir()}
    assert not modules & set(NAMES)


def test_all_errors_are_public():
    errors = import_module("slipstream.errors")
    assert {name for name in vars(errors) if name.endswith("Error")} <= set(NAMES)


def test_import_slipstream_imports_nothing_heavy():
    program = (
        "import sys, slipstream; slipstream.UsageError; print(len({'torch', 'numpy', 'typer'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "0"


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_has_to_dict_and_a_repr_of_its_own(name):
    kind = getattr(slipstream, name)
    assert callable(kind.to_dict)
    assert kind.__repr__ is not object.__repr__
    assert not hasattr(kind, "as_dict") and not hasattr(kind, "as_json")


def test_the_page_on_the_api_names_everything():
    page = API_PAGE.read_text()
    assert [name for name in NAMES if f"`{name}`" not in page] == []


def test_the_version_is_in_one_place():
    settings = tomllib.loads((SOURCE.parents[2] / "pyproject.toml").read_text())
    assert settings["project"]["dynamic"] == ["version"] and "version" not in settings["project"]
    assert settings["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "slipstream.__version__"}
