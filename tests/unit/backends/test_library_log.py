from __future__ import annotations

import ctypes

import pytest

from slipstream.backends.llamacpp import library


def test_a_line_of_megabytes_is_cut():
    llama_cpp = pytest.importorskip("llama_cpp")
    listen = library._listener(llama_cpp)
    with library.listening() as heard:
        listen(2, b"k" * 5_000_000 + b"\n", ctypes.c_void_p(0))
    assert len(heard[0]) == library._MAX_LINE
