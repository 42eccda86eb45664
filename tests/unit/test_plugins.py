"""Drafters, policies and engines of installed packages: found, used, and blamed by name where they are broken."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import slipstream
from fakes import FakeModel, letters
from slipstream.core.engine import Engine
from slipstream.core.team import DrafterTeam
from slipstream.drafters import DraftSources, make_drafter
from slipstream.drafters.ngram import NgramDrafter
from slipstream.engines import find_engine, find_folder, folders
from slipstream.errors import UsageError
from slipstream.policy import AutoPolicy, make_policy

GOOD = """
from slipstream import DraftTree, FixedPolicy, UsageError
from slipstream.engines.llama_server.driver import LlamaServer
from slipstream.engines.llama_server.facts import FACTS as LLAMA_CPP
from dataclasses import replace

class Mine:
    name, is_free = "mine", True

    def __init__(self, sources, options):
        self.sources, self.options = sources, options
        if "bad" in options:
            raise UsageError("mine has no option bad; it has token")

    def begin(self, stream): pass
    def observe(self, observations): pass
    def end(self, stream): pass

    def propose(self, streams, budgets):
        return [DraftTree.chain([int(self.options.get("token", 1))] * budget) for budget in budgets]

class MyPolicy(FixedPolicy):
    def __init__(self, text="2"):
        super().__init__(int(text))

class MyEngine(LlamaServer):
    name = "mine"

ENGINE = MyEngine()
FACTS = replace(LLAMA_CPP, name="mine", aliases=())
"""
GROUPS = {
    "drafters": "mine = {module}:Mine",
    "policies": "mine = {module}:MyPolicy",
    "engines": "mine = {module}",
}
Install = Callable[..., Path]
_numbers = itertools.count()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Writes a package as pip would, into a folder that Python looks in. Each has modules of its own."""

    def install(code: str = GOOD, package: str = "my-package", folder: str = "site", **groups: str) -> Path:
        site, module = tmp_path / folder, f"plugin_{next(_numbers)}"
        info = site / f"{package.replace('-', '_')}-1.2.dist-info"
        info.mkdir(parents=True)
        (site / f"{module}.py").write_text(code)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        sections = [f"[slipstream.{group}]\n{entry}\n" for group, entry in (groups or GROUPS).items()]
        (info / "entry_points.txt").write_text("\n".join(sections).format(module=module))
        monkeypatch.syspath_prepend(str(site))
        return site

    return install


def sources() -> DraftSources:
    return DraftSources(FakeModel(), letters())


# -- found and used -----------------------------------------------------------------------------------------------


def test_a_drafter_gets_the_sources_and_its_options(install: Install):
    install()
    given = sources()
    drafter = make_drafter("mine(token=3)", given)
    assert drafter.sources is given and drafter.options == {"token": "3"}
    model = FakeModel()
    answer = Engine(model, letters(), drafter, make_policy("mine")).generate([3, 1, 4], max_tokens=20).result()
    assert answer.tokens == Engine(model, letters()).generate([3, 1, 4], max_tokens=20).result().tokens
    assert answer.stats.num_drafted > 20


def test_a_drafter_works_in_a_chain(install: Install):
    install()
    drafter = make_drafter("chained:ngram,mine", sources())
    assert type(drafter) is DrafterTeam and drafter.name == "chained:ngram,mine"


@pytest.mark.parametrize(("spec", "name"), [("mine", "fixed(2)"), ("mine()", "fixed(2)"), ("mine(5)", "fixed(5)")])
def test_a_policy_gets_the_text_in_brackets(install: Install, spec: str, name: str):
    install()
    assert make_policy(spec).name == name


def test_an_engine_is_found_with_what_it_has(install: Install):
    install()
    folder = find_folder("mine")
    assert find_engine("mine").name == "mine" and folder.facts.weights == "gguf"
    assert folder.configuration is None and folder.log is None


def test_an_engine_without_facts_is_refused_by_name_and_left_out_of_lists(install: Install, caplog):
    install("ENGINE = None")
    with pytest.raises(UsageError, match=r"the engine 'mine' .* has no facts.py with FACTS"):
        _ = find_folder("mine").facts
    assert "mine" not in [folder.name for folder in folders()]
    assert "has no facts.py with FACTS" in caplog.text


def test_slipstreams_own_names_win(install: Install):
    own = {"drafters": "ngram = {module}:Mine", "policies": "auto = {module}:MyPolicy"}
    install(**own, engines="vllm = {module}")
    assert type(make_drafter("ngram", sources())) is NgramDrafter
    assert type(make_policy("auto")) is AutoPolicy
    assert find_engine("vllm").name == "vllm"
    with pytest.raises(UsageError, match="unknown policy"):
        make_policy("auto(x)")


def test_a_package_that_is_there_twice_counts_once(install: Install):
    install(folder="user")
    install(folder="system")
    assert make_policy("mine").name == "fixed(2)"


@pytest.mark.parametrize("find", [lambda: make_drafter("theirs", sources()), lambda: make_policy("theirs"),
                                  lambda: find_engine("theirs"), lambda: find_folder("theirs")])  # fmt: skip
def test_an_unknown_name_lists_the_plugins_too(install: Install, find: Callable[[], object]):
    install()
    with pytest.raises(UsageError, match=r"'theirs'.*; from installed packages: mine"):
        find()


# -- refused ------------------------------------------------------------------------------------------------------


NOT_THERE = "the name is not there"
BROKEN = {
    "it can't be imported": ("import nothing_of_this_name", "ModuleNotFoundError: No module named 'nothing_of"),
    "it ends the process": ("raise SystemExit(3)", "SystemExit: 3"),
    NOT_THERE: ("", "has no attribute '(Mine|MyPolicy)'"),
    "it is something else": (
        "Mine = MyPolicy = lambda *_: 5\nENGINE = 5",
        "int has no name; expected a (Drafter|Policy|ExternalEngine)",
    ),
}
FAILING = {
    "it raises": ("def Mine(*_): 1 / 0\nMyPolicy = Mine", "ZeroDivisionError"),
    "it takes other arguments": ("def Mine(): pass\ndef MyPolicy(a, b): pass", "TypeError"),
}
FIND = {
    "drafter": lambda: make_drafter("mine", sources()),
    "policy": lambda: make_policy("mine"),
    "engine": lambda: find_engine("mine"),
}
CASES = [(kind, *case) for kind in FIND for what, case in BROKEN.items() if kind != "engine" or what != NOT_THERE]
CASES += [(kind, *case) for kind in ("drafter", "policy") for case in FAILING.values()]  # an engine is not called


@pytest.mark.parametrize(("kind", "code", "message"), CASES)
def test_a_broken_plugin_is_one_error_that_names_its_package(install: Install, kind: str, code: str, message: str):
    install(code)
    expected = rf"the {kind} 'mine' \(plugin_\d+(:\w+)?\) of the package my-package 1.2 does not work: .*{message}"
    with pytest.raises(UsageError, match=expected):
        FIND[kind]()


def test_an_error_that_a_plugin_raises_on_purpose_is_its_own(install: Install):
    install()
    with pytest.raises(UsageError, match=r"^mine has no option bad; it has token$"):
        make_drafter("mine(bad=1)", sources())


def test_an_engine_has_the_name_of_its_entry_point(install: Install):
    install(engines="other = {module}")
    with pytest.raises(UsageError, match=r"the engine 'other' of plugin_\d+ calls itself 'mine'"):
        print(find_folder("other").facts)


def test_two_packages_with_one_name_are_refused(install: Install):
    install(package="one")
    install(package="two", folder="elsewhere")
    with pytest.raises(UsageError, match=r"several packages have a policy 'mine': two 1.2, one 1.2; keep one"):
        make_policy("mine")


@pytest.mark.parametrize("entry", ["", ".", "site", "absolute"])
def test_what_lies_in_the_current_folder_is_not_installed(
    install: Install, entry: str, monkeypatch: pytest.MonkeyPatch
):
    site = install("raise AssertionError('executed')")
    monkeypatch.chdir(site.parent if entry == "site" else site)
    monkeypatch.setattr(sys, "path", [str(site) if entry == "absolute" else entry, *sys.path[1:]])
    with pytest.raises(UsageError, match=r"unknown drafter 'mine'; expected none, .*chained$"):
        make_drafter("mine", sources())


@pytest.mark.parametrize("path", ["", "."])
def test_a_command_executes_no_plugin_of_the_current_folder(install: Install, path: str):
    site = install("open('executed', 'w')")
    command = [sys.executable, "-m", "slipstream", "generate", "--drafter", "mine", "--policy", "mine", "Hello"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(slipstream.__file__).parents[1]), path])}
    done = subprocess.run(command, cwd=site, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "unknown policy 'mine'" in done.stderr
    assert not (site / "executed").exists()
