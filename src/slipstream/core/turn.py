"""Turn: the lock for using models. One round at a time, over all engines of this process.

Engines may share a model, and models share a device: KV pools, scratch buffers and graphs belong to them, not to an
engine. So rounds of two engines never overlap, and nothing is opened or closed in the middle of one.

Cancelling must not wait for a round: it may come from a signal handler, from the garbage collector or from a drafter,
in the thread that runs the round. Such work is queued with `soon` and done when the round ends.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from slipstream.errors import UsageError

log = logging.getLogger("slipstream")


class Turn:
    def __init__(self) -> None:
        self._was_used = False
        self._is_forked = False  # from a process that already used models
        self._reset()

    def _reset(self) -> None:
        self._queue = threading.RLock()  # held by the next thread, so that one that just finished can't overtake it
        self._lock = threading.RLock()
        self._is_taken = False  # whether this thread is already in a round: the reentrant lock alone does not show it
        self._due: deque[Callable[[], None]] = deque()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Waits for the turn and holds it inside the block; then runs the work queued with `soon`.

        Raises UsageError inside a round of the same thread, and in a process forked from one that used models.
        """
        self.check_process()
        self._was_used = True
        with self._queue:
            self._lock.acquire()
        try:
            if self._is_taken:
                raise UsageError(
                    "a drafter or a signal handler asked an engine for tokens during a round: only cancel() may be "
                    "called there"
                )
            try:
                self._is_taken = True
                try:
                    yield
                finally:
                    self._do_due()
            finally:
                self._is_taken = False
        finally:
            self._lock.release()
        self._do_if_free()

    def soon(self, action: Callable[[], None]) -> None:
        """Does `action` now if no round is running, else when it ends. Never waits, never raises."""
        if not self._is_forked:
            self._due.append(action)
            self._do_if_free()

    def check_process(self) -> None:
        """Raises UsageError in a forked process: the threads of OpenMP, CUDA and llama.cpp are lost in a fork."""
        if self._is_forked:
            raise UsageError(
                "this process was forked from one that already used models, and models can't be used after a fork: "
                "start workers with multiprocessing.get_context('spawn'), or load models only in the workers"
            )

    def _do_if_free(self) -> None:
        """Checks again after each release, so work that arrives while the turn is held is never forgotten."""
        while self._due and self._lock.acquire(blocking=False):
            try:
                if self._is_taken:
                    return  # held by this thread: it runs the work when its round ends
                try:
                    self._is_taken = True
                    self._do_due()
                finally:
                    self._is_taken = False
            finally:
                self._lock.release()

    def _do_due(self) -> None:
        while self._due:
            try:
                self._due[0]()
            except Exception:
                log.exception("an engine could not clean up")
            self._due.popleft()  # remove it only now, so that an action interrupted by Ctrl-C runs again

    def after_fork(self) -> None:
        self._is_forked = self._was_used
        self._reset()


TURN = Turn()
if hasattr(os, "register_at_fork"):  # no fork on this platform
    os.register_at_fork(after_in_child=TURN.after_fork)
