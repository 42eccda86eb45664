"""Imports go one way: cli → … → core ← drafters, backends; heavy imports live in backends."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import count_code
import slipstream

PACKAGE = Path(slipstream.__file__).parent
PARTS = sorted({p.stem if p.suffix == ".py" else p.name for p in PACKAGE.iterdir() if not p.name.startswith("_")})
EVERYWHERE = {
    "errors",
    "cache",
    "child",
    "extras",
    "host",
    "plugins",
    "reading",
    "writing",
}  # small things that every part may use
STRUCTURE = (Path(__file__).parents[2] / "docs" / "structure.md").read_text()


def allowed_imports() -> dict[str, set[str]]:
    """By package, from the table of docs/structure.md."""
    table = STRUCTURE[STRUCTURE.index("| package |") : STRUCTURE.index("`tests/unit/test_architecture.py` enforces")]
    rows = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith("| `")]
    parts = [name for packages, _, _ in rows for name in re.findall(r"`(\w+)`", packages)]
    allowed = {}
    for packages, _, imports in rows:
        of_row, named = re.findall(r"`(\w+)`", packages), set(re.findall(r"`(\w+)`", imports))
        if "everything" in imports:
            named = set(parts) - named
        elif "all below" in imports:
            named = set(parts[parts.index(of_row[0]) + 1 :]) - named
        elif "each other" in imports:
            named = EVERYWHERE
        for package in of_row:
            allowed[package] = named | (EVERYWHERE if package != "errors" else set())
            if parts.index(package) < parts.index("models"):
                allowed[package] |= {"findings"}
    return allowed


ALLOWED = allowed_imports()


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
    allowed = ALLOWED[part] | {part}
    wrong = {
        str(path.relative_to(PACKAGE)): sorted(bad)
        for path in modules(part)
        if (bad := parts_imported(path) & set(PARTS) - allowed)
    }
    assert wrong == {}


def test_every_package_has_a_row():
    assert set(PARTS) - {"py.typed"} == set(ALLOWED)


def test_every_module_has_a_line():
    """Modules are named in the tables by their last name, some of them with the folder."""
    cells = [line.split("|")[1] for line in STRUCTURE.splitlines() if line.startswith("| `")]
    named = {name for cell in cells for quoted in re.findall(r"`([^`]+)`", cell) for name in re.split(r"[/ ]", quoted)}
    missing = [
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if path.stem not in {*named, "__init__", "__main__"} and path.parent != PACKAGE / "cli"
    ]
    assert missing == []


@pytest.mark.parametrize("part", [p for p in PARTS if p not in ("cli", "py")])
def test_nothing_but_the_command_line_imports_the_command_line(part):
    assert not [path for path in modules(part) if path.exists() and "cli" in parts_imported(path)]


@pytest.mark.parametrize("heavy", ["torch", "transformers"])
def test_heavy_imports_live_in_backends(heavy):
    users = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if any(name.split(".")[0] == heavy for name in imports(path, at_run_time_only=True))
    }
    assert {name for name in users if not name.startswith(("backends/", "train/"))} <= {"predict/machine.py"}


def test_there_is_no_import_cycle():
    assert count_code.count(PACKAGE.parent)["import_cycles"] == []


@pytest.mark.parametrize(
    "module",
    [
        "slipstream",
        "slipstream.cli",
        "slipstream.core.engine",
        "slipstream.diagnosis.configs",
        "slipstream.diagnosis.logs",
        "slipstream.drafters",
    ],
)
def test_importing_needs_no_torch(module):
    program = f"import sys, {module}; print(sorted({{'torch', 'transformers'}} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == "[]"
