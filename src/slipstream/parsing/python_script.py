"""Python scripts that configure an engine: read, not run."""

from __future__ import annotations

import ast

from slipstream.findings import Finding
from slipstream.parsing.config_checks import SYNTAX, shorten


def python_tree(text: str) -> ast.Module | Finding:
    """The code, or what is wrong with it."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        what, hint = f"invalid Python at line {line}", "A script to check must be complete statements."
        return SYNTAX.finding(f"line {line}: {shorten(str(error))}", what=what, where=f"line {line}", hint=hint)


def calls_of(tree: ast.Module, name: str) -> list[ast.Call]:
    """Calls of `name`, `module.name` and `name.from_pretrained`, in the order of their lines."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and is_call_of(node, name)]
    return sorted(found, key=lambda call: call.lineno)


def is_call_of(node: ast.AST, name: str) -> bool:
    if not isinstance(node, ast.Call):
        return False
    return ast.unparse(node.func).removesuffix(".from_pretrained").rpartition(".")[2] == name
