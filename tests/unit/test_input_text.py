"""Prompts that are not UTF-8: one clear line before anything is loaded."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "encoding", ["utf-8:strict", "utf-8:surrogateescape"]
)  # as a UTF-8 and as the C locale have it
@pytest.mark.parametrize("where", ["stdin", "argument"])
def test_bytes_that_are_not_utf8(where: str, encoding: str) -> None:
    prompt = b"caf\xe9 au lait"
    done = subprocess.run(
        [sys.executable, "-m", "slipstream", "generate", "-" if where == "stdin" else prompt],
        input=prompt, env=os.environ | {"PYTHONIOENCODING": encoding}, capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.count(b"\n") == 1 and b"byte 0xe9 after 3 characters" in done.stderr
