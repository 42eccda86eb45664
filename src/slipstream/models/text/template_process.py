"""TemplateProcess: renders chat templates in a child process with limits on time and memory."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream.child import stdlib_script
from slipstream.errors import SlipstreamError, UsageError
from slipstream.models.text import template_worker

CPU_LIMIT_S = 2.0  # CPU time for one rendering; most take less than a millisecond
_WAY_OUT = "Use --raw to pass the text unchanged, or use another copy of the model."


class TemplateProcess:
    """One child process for all templates of this process, started when needed. Safe to use from several threads."""

    def __init__(self, cpu_limit_s: float = CPU_LIMIT_S) -> None:
        self._cpu_limit_s = cpu_limit_s
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        atexit.register(self.stop)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def render(self, source: str, values: Mapping[str, Any]) -> str:
        """The text that a template writes. Raises UsageError if it fails, or takes too much time or memory."""
        try:
            request = json.dumps({"source": source, "values": values}).encode() + b"\n"
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(
                f"The messages contain something other than text, numbers, lists and objects: {error}."
            ) from error
        with self._lock:
            answer = self._ask(request)
        if "error" in answer:
            raise UsageError(
                f"The model's chat template refuses this conversation: {answer['error'].rstrip('.')}. Change the "
                "messages, or use --raw to pass the text unchanged."
            )
        return answer["text"]

    def stop(self) -> None:
        """Ends the child; the next rendering starts another."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.communicate()

    def _ask(self, request: bytes) -> dict[str, str]:
        child = self._child = self._running()
        assert child.stdin is not None and child.stdout is not None
        try:
            try:
                child.stdin.write(request)
                child.stdin.flush()
            except BrokenPipeError:  # it has exited; the reason is reported below
                pass
            line = child.stdout.readline()
        except BaseException:  # interrupted: its answer must not be used for the next request
            self.stop()
            raise
        if not line.endswith(b"\n"):
            self._child = None
            child.communicate()
            raise self._stopped(child.returncode)
        answer: dict[str, str] = json.loads(line)
        return answer

    def _running(self) -> subprocess.Popen[bytes]:
        if self._child is not None and self._child.poll() is None:
            return self._child
        folders = [folder for folder in sys.path if folder]  # an empty entry means the current folder
        command = stdlib_script(Path(template_worker.__file__), str(self._cpu_limit_s), json.dumps(folders))
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # it must not receive Ctrl-C from the terminal
            )
        except OSError as error:
            raise SlipstreamError(f"the child process for chat templates did not start: {error}") from error

    def _forget(self) -> None:
        """In a fork: the child belongs to the process that started it."""
        self._lock = threading.Lock()
        self._child = None

    def _stopped(self, code: int) -> UsageError:
        if hasattr(signal, "SIGPROF") and code == -signal.SIGPROF:
            reason = f"took more than {self._cpu_limit_s:g} s of CPU time and was stopped"
        elif code == template_worker.MEMORY_EXIT:
            reason = f"needed more than {template_worker.MEMORY_LIMIT_BYTES >> 20} MB of memory and was stopped"
        else:
            reason = f"ended its process with code {code}"
        return UsageError(f"The model's chat template {reason}. {_WAY_OUT}")


renderer = TemplateProcess()
