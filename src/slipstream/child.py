"""How child processes are started, so that nothing in the current folder is executed.

A Python that is started with `-c` or `-m` looks for modules in the current folder first: a `numpy.py` that lies there
would run instead of numpy. Every child Python is started by a function of this module.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Removes the empty entry that `-c` puts first in sys.path. `sys` is built in, so importing it looks in no folder.
_LEAVE_CURRENT_FOLDER = "import sys\nsys.path[:] = [entry for entry in sys.path if entry]\n"


def own_python(*arguments: str) -> list[str]:
    """The command line of this Python, for a child that needs the packages of this process.

    `-P` and not `-I`: Slipstream, torch or pip may have been found through PYTHONPATH or the user's site folder, which
    `-I` leaves out.
    """
    return [sys.executable, "-P", *arguments]


def stdlib_script(script: Path, *arguments: str) -> list[str]:
    """The command line of a script that imports the standard library only: `-I`, so no other folder is looked in."""
    return [sys.executable, "-I", str(script), *arguments]


def other_python(python: str, program: str, *arguments: str) -> list[str]:
    """The command line of `program` in the Python of another environment.

    Neither `-P`, which Pythons before 3.11 do not have, nor `-I`, which leaves out PYTHONPATH and the user's site
    folder: an engine would be started there with both. The program itself removes the current folder.
    """
    return [python, "-c", _LEAVE_CURRENT_FOLDER + program, *arguments]


def distrust_current_folder() -> None:
    """Makes children of this process, and their own children, ignore the current folder. Changes `os.environ`.

    PATH keeps its absolute entries only: an empty entry, `.` or `bin` would run programs of the current folder.
    PYTHONSAFEPATH is `-P` for Pythons that engines and tools start themselves (from 3.11 on; others ignore it).
    """
    entries = os.environ.get("PATH", os.defpath).split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join(entry for entry in entries if Path(entry).is_absolute())
    os.environ["PYTHONSAFEPATH"] = "1"
