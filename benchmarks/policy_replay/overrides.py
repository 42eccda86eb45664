"""Other values for the policy's constants: `--set NAME=VALUE`, and each of them halved and doubled for `--sensitivity`.

A constant is changed in the source as its module is imported, so that default arguments and imports by name follow. It
has to be asked for before anything of slipstream is imported.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import TypeGuard

POLICY_MODULES = ("slipstream.policy",)  # a package stands for all its modules


def parse(text: str) -> tuple[str, str]:
    """`slipstream.policy.constants.CAUTION=1.0`. Raises SystemExit for anything else."""
    name, _, value = text.partition("=")
    try:
        float(value)
    except ValueError:
        raise SystemExit(
            f"--set {text}: expected NAME=NUMBER, for example slipstream.policy.constants.CAUTION=1.0"
        ) from None
    return name.strip(), value.strip()


def install(overrides: dict[str, str]) -> None:
    """Raises SystemExit where a module has no such constant."""
    assert not overrides or "slipstream.core" not in sys.modules, "too late: the constants are in use"
    by_module: dict[str, dict[str, str]] = {}
    for name, value in overrides.items():
        module, _, constant = name.rpartition(".")
        by_module.setdefault(module, {})[constant] = value
    sys.meta_path.insert(0, _Finder(by_module))
    for module in by_module:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise SystemExit(f"--set {module}: {error}") from None


class _Finder(MetaPathFinder):
    def __init__(self, by_module: dict[str, dict[str, str]]) -> None:
        self._by_module = by_module

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._by_module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(fullname, spec.loader.path, self._by_module[fullname])
        return spec


class _Loader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, values: dict[str, str]) -> None:
        super().__init__(fullname, path)
        self._values = values

    def get_code(self, fullname: str) -> CodeType:
        """Always from the source: what is compiled here must not get into the cache of bytecode."""
        path = self.get_filename(fullname)
        tree = ast.parse(self.get_data(path), path)
        found = dict(_numbers(tree))
        for name, value in self._values.items():
            if name not in found:
                raise SystemExit(f"--set {fullname}.{name}: no such constant; there are {', '.join(found)}")
            is_whole = isinstance(found[name].value, int)
            found[name].value = round(float(value)) if is_whole else float(value)
        return compile(tree, path, "exec")


def _numbers(tree: ast.Module) -> Iterator[tuple[str, ast.Constant]]:
    """Names in capitals at the top of a module, and the numbers that they are given."""
    for node in tree.body:
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target, value = node.targets[0], node.value
        is_tuple = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
        pairs = zip(target.elts, value.elts, strict=True) if is_tuple else [(target, value)]  # type: ignore[attr-defined]
        for name, number in pairs:
            if isinstance(name, ast.Name) and name.id.isupper() and _is_number(number):
                yield name.id, number


def _is_number(node: ast.expr) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def constants() -> dict[str, float]:
    """The numbers in capitals of all policy modules, by their full name."""
    found: dict[str, float] = {}
    for module in _modules():
        tree = ast.parse(Path(module.__file__ or "").read_text(encoding="utf-8"))
        found |= {f"{module.__name__}.{name}": number.value for name, number in _numbers(tree)}
    return found


def _modules() -> Iterator[ModuleType]:
    for name in POLICY_MODULES:
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        yield module
        for info in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{name}."):
            yield importlib.import_module(info.name)


def other_values(value: float) -> tuple[float, float]:
    """Half and double. Of what lies near 1, as a share that fades or a gain does, the distance to 1."""
    if isinstance(value, int):
        return max(1, value // 2), value * 2
    if 0.5 < value < 1.5 and value != 1:
        return 1 + (value - 1) / 2, 1 + (value - 1) * 2
    return value / 2, value * 2
