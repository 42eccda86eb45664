"""Watchdogs: a case that does not end becomes a failure of that case."""

from __future__ import annotations

import faulthandler
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class CaseTimeoutError(BaseException):
    """A case took too long. No `except Exception` of the product swallows it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises CaseTimeoutError in the main thread after `seconds` of processor time. Does nothing in other threads."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handler(number: int, frame: object) -> None:
        raise CaseTimeoutError(f"no end after {seconds:.0f} s of processor time")

    before = signal.signal(signal.SIGVTALRM, handler)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@contextmanager
def hard_limit(seconds: float) -> Iterator[None]:
    """Ends the process, with the stack of every thread on stderr, after `seconds` of wall time."""
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
