"""Imports go one way: cli → … → core ← drafters, backends; heavy imports live in backends."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import slipstream

PACKAGE = Path(slipstream.__file__).parent
PARTS = sorted({p.stem if p.suffix == ".py" else p.name for p in PACKAGE.iterdir() if not p.name.startswith("_")})
EVERYWHERE = {"errors", "cache", "child", "writing"}  # small things that every part may use

ALLOWED = {
    "core": set(),
    "policy": {"core", "plugins"},
    "drafters": {"core", "plugins"},
    "backends": {"core", "models"},
    "models": set(),
    "engines": {"core", "plugins"},
    "model_files": {"findings", "models"},
    "vocabularies": {"findings", "model_files", "models", "drafters"},
    "predict": {"findings", "model_files"},
    "catalogue": {"findings", "model_files", "models", "predict", "vocabularies"},
    "diagnosis": {
        "catalogue",
        "core",
        "drafters",
        "engines",
        "findings",
        "model_files",
        "models",
        "predict",
        "vocabularies",
    },
    "measurement": {"core", "policy", "predict", "engines", "backends", "loading", "models"},
    "tasks": {
        "backends",
        "catalogue",
        "core",
        "diagnosis",
        "drafters",
        "engines",
        "findings",
        "loading",
        "measurement",
        "model_files",
        "models",
        "policy",
        "predict",
        "vocabularies",
    },
    "cli": {
        "backends",
        "catalogue",
        "core",
        "diagnosis",
        "engines",
        "findings",
        "measurement",
        "models",
        "predict",
        "tasks",
    },
    "loading": {"core", "policy", "drafters", "backends", "models", "vocabularies"},
    "findings": set(),
    "plugins": set(),
    "errors": set(),
    "cache": {"errors"},
    "child": set(),
    "writing": {"errors"},
}


def modules(part: str) -> list[Path]:
    folder = PACKAGE / part
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]


def imports(path: Path, *, at_run_time_only: bool = False) -> set[str]:
    """Full names of all modules that a file imports, inside functions too."""
    found = set()
    for node in _nodes(ast.parse(path.read_text()), at_run_time_only):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _nodes(tree: ast.AST, at_run_time_only: bool):
    for child in ast.iter_child_nodes(tree):
        if at_run_time_only and isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from _nodes(child, at_run_time_only)


def parts_imported(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imports(path) if name.startswith("slipstream.")}


@pytest.mark.parametrize("part", ALLOWED)
def test_a_part_imports_only_what_lies_below_it(part):
    allowed = ALLOWED[part] | {part} | (EVERYWHERE if part not in EVERYWHERE else set())
    wrong = {
        str(path.relative_to(PACKAGE)): sorted(bad)
        for path in modules(part)
        if (bad := parts_imported(path) & set(PARTS) - allowed)
    }
    assert wrong == {}


@pytest.mark.parametrize("part", [p for p in PARTS if p not in ("cli", "py")])
def test_nothing_but_the_command_line_imports_the_command_line(part):
    assert not [path for path in modules(part) if path.exists() and "cli" in parts_imported(path)]


@pytest.mark.parametrize("part", ["core", "drafters", "models", "errors", "cache"])
@pytest.mark.parametrize("heavy", ["torch", "transformers"])
def test_heavy_imports_live_in_backends(part, heavy):
    users = [
        path.name
        for path in modules(part)
        if any(name.split(".")[0] == heavy for name in imports(path, at_run_time_only=True))
    ]
    assert users == []


@pytest.mark.parametrize("module", ["slipstream", "slipstream.cli", "slipstream.core.engine", "slipstream.drafters"])
def test_importing_needs_no_torch(module):
    program = f"import sys, {module}; print(sorted({{'torch', 'transformers'}} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == "[]"
