"""llama-cpp-python's low-level API, imported when needed, and its log messages."""

from __future__ import annotations

import ctypes
import functools
import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from slipstream.errors import MissingDependencyError
from slipstream.extras import install_command

log = logging.getLogger("slipstream.llamacpp")

_ERROR_LEVEL = 4  # ggml_log_level
_MAX_LINE = 2000  # bytes of a line of the log: it shows keys and values of a file, which may have megabytes
_lines: deque[str] = deque(maxlen=2000)  # of the library's log
_complaints: deque[str] = deque(maxlen=8)


@functools.cache
def library() -> Any:
    """The module `llama_cpp`, initialised. Raises MissingDependencyError."""
    try:
        import llama_cpp
    except ImportError as error:
        raise MissingDependencyError(
            f"the llama.cpp backend needs llama-cpp-python ({error}). Run: {install_command('llamacpp')} "
            "(docs/llamacpp.md has the flags for GPUs)"
        ) from error
    llama_cpp.llama_log_set(_listener(llama_cpp), ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    return llama_cpp


@functools.cache  # the library keeps calling it, so it must not be garbage-collected
def _listener(llama_cpp: Any) -> Any:
    def listen(level: int, text: bytes, _: object) -> None:
        line = text[:_MAX_LINE].decode("utf-8", errors="replace").rstrip("\n")
        if len(line) < 2:  # dots of a progress bar
            return
        _lines.append(line)
        if level == _ERROR_LEVEL:
            _complaints.append(line)
        log.debug(line)

    return llama_cpp.llama_log_callback(listen)


@contextmanager
def listening() -> Iterator[list[str]]:
    """Collects the library's messages inside the block; the list is filled when the block ends."""
    heard: list[str] = []
    _lines.clear()
    _complaints.clear()
    try:
        yield heard
    finally:
        heard += _lines


def last_complaint() -> str:
    """The last errors the library logged, as a clause for a message."""
    return f"llama.cpp said: {'; '.join(_complaints)}" if _complaints else "llama.cpp gave no reason"


@functools.cache
def ggml() -> Any:
    """The library of devices below llama.cpp, its functions typed."""
    library()
    from llama_cpp import _ggml

    lib = _ggml.libggml
    for name, arguments, result in (
        ("ggml_backend_dev_count", [], ctypes.c_size_t),
        ("ggml_backend_dev_get", [ctypes.c_size_t], ctypes.c_void_p),
        ("ggml_backend_dev_name", [ctypes.c_void_p], ctypes.c_char_p),
        ("ggml_backend_dev_description", [ctypes.c_void_p], ctypes.c_char_p),
        ("ggml_backend_dev_type", [ctypes.c_void_p], ctypes.c_int),
        (
            "ggml_backend_dev_memory",
            [ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)],
            None,
        ),
    ):
        function = getattr(lib, name)
        function.argtypes, function.restype = arguments, result
    return lib
