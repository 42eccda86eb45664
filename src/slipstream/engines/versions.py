"""The versions of engines on this machine."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path

_LIMIT_S = 10.0


def numbers(text: str) -> tuple[int, ...]:
    """The numbers at the beginning of a version, for comparing: 0.29.1rc2 is (0, 29, 1)."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", text)
    return tuple(map(int, found[1].split("."))) if found else ()


def package_version(program: str, names: tuple[str, ...]) -> str | None:
    """The version of the Python package that a program belongs to. Starting such programs takes many seconds, so the
    package is looked up in the environment of the program.
    """
    path = shutil.which(program)
    if path is None:
        return None
    prefix = Path(path).resolve().parent.parent  # installers of tools put links on PATH
    folders = [str(folder) for folder in prefix.glob("lib/python*/site-packages")]
    found = {one.name.lower(): one.version for one in distributions(path=folders)} if folders else {}
    return next((found[name] for name in names if name in found), None)


def own_package_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def program_version(program: str, pattern: str) -> str | None:
    """What `program --version` says."""
    path = shutil.which(program)
    if path is None:
        return None
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, errors="replace", timeout=_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(pattern, done.stdout + done.stderr)
    return found[1] if found else None
