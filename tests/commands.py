"""Commands: what they print and how they end."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from unittest import mock

from slipstream.cli import main


def run_apart(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, as a user starts it."""
    return subprocess.run(
        [sys.executable, "-m", "slipstream", *arguments],
        input=stdin, capture_output=True, text=True, timeout=280, env=os.environ | environment,
    )  # fmt: skip


def run_here(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """In this process: quicker by a start of Python and torch. For commands that refuse, explain or compute little;
    how they start, what they import and what signals do to them takes a process of its own. Lines are wide: where they
    break must not hang on how long the path of a temporary folder is.
    """
    out, err = _text_file(), _text_file()
    with (
        mock.patch.dict(os.environ, {"COLUMNS": "200"} | environment),
        mock.patch.object(sys, "argv", ["slipstream", *arguments]),
        mock.patch.object(sys, "stdin", _text_file(stdin)),
        mock.patch.object(logging.root, "handlers", []),  # a command's own handler writes to the stderr of here
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        code = _exit_code()
    return subprocess.CompletedProcess(arguments, code, _written(out), _written(err))


def refused(result: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """One line that names the trouble, the right exit code, no traceback, nothing on stdout."""
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    last = result.stderr.strip().splitlines()[-1]
    for word in words:
        assert word in last, last


def _exit_code() -> int:
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _text_file(text: str = "") -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8", errors="backslashreplace")


def _written(file: io.TextIOWrapper) -> str:
    file.flush()
    return file.buffer.getvalue().decode()  # type: ignore[attr-defined]
