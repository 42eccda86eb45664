"""Counts what makes the package easy or hard to read.

    python tools/count_code.py [--json] [--source src]

Functions include methods and nested functions; their length is in lines, decorators left out. Parameters leave out
`self` and `cls`. Nesting counts if, for, while, with, try and match inside a function. A class name has more than one
meaning where two modules define it. Import cycles are sets of modules that import each other, those imported inside
functions and for type checking alone included.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

MANY_PARAMETERS, DEEP_NESTING, LONG_COMMAND = 6, 3, 60
_BLOCKS = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.Match, ast.AsyncFor, ast.AsyncWith)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def modules(source: Path) -> dict[str, tuple[Path, ast.Module]]:
    """Modules by dotted name."""
    found = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = (path, ast.parse(path.read_text()))
    return found


def functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS))


def length(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def num_parameters(function: Function) -> int:
    given = function.args
    names = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def nesting(node: ast.AST, depth: int = 0) -> int:
    """The deepest block inside; an `elif` is as deep as its `if`."""
    deepest = depth
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*_FUNCTIONS, ast.ClassDef)):
            continue
        is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
        deeper = depth + (isinstance(child, _BLOCKS) and not is_elif)
        deepest = max(deepest, nesting(child, deeper))
    return deepest


def imports(name: str, tree: ast.Module, known: set[str]) -> set[str]:
    """Modules of the package that a module imports anywhere in its text."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= members & known
            if members - known:
                found.add(node.module)
    return (found & known) - {name}


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Sets of modules that reach each other (Tarjan's strongly connected components of two and more)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            at = stack.index(node)
            found.append(sorted(stack[at:]))
            del stack[at:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return [members for members in found if len(members) > 1]


def count(source: Path) -> dict[str, Any]:
    found = modules(source)
    lines = {name: len(path.read_text().splitlines()) for name, (path, _) in found.items()}
    all_functions = [(name, f) for name, (_, tree) in found.items() for f in functions(tree)]
    lengths = sorted(length(f) for _, f in all_functions)
    homes: dict[str, set[str]] = {}
    for name, (_, tree) in found.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, set()).add(name)
    graph = {name: imports(name, tree, set(found)) for name, (_, tree) in found.items()}
    commands = [(name, f) for name, f in all_functions if ".cli" in name]
    return {
        "files": len(found),
        "lines": sum(lines.values()),
        "longest_file": max((n, name) for name, n in lines.items()),
        "functions": len(lengths),
        "function_lines": {"median": median(lengths), "p90": lengths[len(lengths) * 9 // 10], "max": lengths[-1]},
        "functions_over_60_lines": _named(all_functions, lambda f: length(f) > LONG_COMMAND),
        "command_functions_over_60_lines": _named(commands, lambda f: length(f) > LONG_COMMAND),
        "functions_over_6_parameters": len(_named(all_functions, lambda f: num_parameters(f) > MANY_PARAMETERS)),
        "most_parameters": max(num_parameters(f) for _, f in all_functions),
        "functions_nested_over_3": _named(all_functions, lambda f: nesting(f) > DEEP_NESTING),
        "class_names_with_several_meanings": {n: sorted(h) for n, h in sorted(homes.items()) if len(h) > 1},
        "modules_by_package": dict(Counter(name.rpartition(".")[0] for name in found)),
        "import_cycles": cycles(graph),
    }


def _named(found: list[tuple[str, Function]], is_counted: Any) -> list[str]:
    return sorted(f"{name}.{function.name}" for name, function in found if is_counted(function))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, default=Path(__file__).parents[1] / "src")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    counted = count(arguments.source)
    if arguments.json:
        print(json.dumps(counted))
        return
    for name, value in counted.items():
        shown = f"{len(value)}: {value}" if isinstance(value, list) and name != "longest_file" else value
        print(f"{name}: {shown}")


if __name__ == "__main__":
    main()
