"""Client: asks an engine over HTTP and reads streams of JSON events. What goes wrong is an EngineRequestError.

On the standard library: which HTTP package the hub's client brings differs from version to version of it.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from slipstream.engines.engine_types import Request
from slipstream.engines.secrets import redacted_text
from slipstream.errors import EngineRequestError, UsageError

_QUOTED = 300  # characters of an error's body that are shown


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds without a byte before an engine counts as silent."""

    answer_s: float = 300.0  # the first token of a long prompt takes long
    figures_s: float = 5.0  # metrics, health, slots


class Client:
    """Of one engine at `url`. Every call opens a connection of its own, so that threads may share a client.

    `log` is where the engine writes on this machine, for those that tell figures nowhere else; None where unknown.
    """

    def __init__(
        self, url: str, api_key: str | None = None, timeouts: Timeouts | None = None, log: Path | None = None
    ) -> None:
        """Raises UsageError for a URL that is none."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(
                f"{redacted_text(url)!r} is no address of an engine; expected for example http://127.0.0.1:8080"
            )
        self.url = redacted_text(url).rstrip("/")  # as messages show it
        self.log = log
        self.timeouts = timeouts or Timeouts()
        self._parts = parts
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    def is_ready(self, path: str) -> bool:
        """Whether `path` answers 200; False where nobody listens yet."""
        try:
            with self._open("GET", path, None, self.timeouts.figures_s) as response:
                return response.status == 200
        except EngineRequestError:
            return False

    def get_text(self, path: str) -> str:
        with self._open("GET", path, None, self.timeouts.figures_s) as response:
            self._check(response, path)
            return response.read().decode(errors="replace")

    def get_json(self, path: str) -> Any:
        return self._parsed(self.get_text(path), path)

    def post_json(self, path: str, body: Mapping[str, Any], timeout_s: float | None = None) -> Any:
        """One JSON answer. Waits as long as for an answer's first token unless told otherwise."""
        with self._open("POST", path, body, timeout_s or self.timeouts.answer_s) as response:
            self._check(response, path)
            return self._parsed(response.read().decode(errors="replace"), path)

    def stream(self, request: Request) -> Iterator[Mapping[str, Any]]:
        """The events of an answer as they come: server-sent events (`data: {…}`) or a JSON object a line.

        Ends where the engine ends it; whether the answer was whole is for the reader of the events to say. An event
        that is an error raises EngineRequestError with the engine's words.
        """
        with self._open("POST", request.path, request.body, self.timeouts.answer_s) as response:
            self._check(response, request.path)
            for line in iter(response.readline, b""):
                text = line.decode(errors="replace").strip().removeprefix("data:").strip()
                if text == "[DONE]":
                    return
                if not text.startswith("{"):
                    continue
                event = self._parsed(text, request.path)
                if event.get("error"):
                    raise EngineRequestError(f"{self.url}{request.path} broke off: {_message(event)}")
                yield event

    @contextmanager
    def _open(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float
    ) -> Iterator[http.client.HTTPResponse]:
        """Failures of the connection, then and while the answer is read, become errors that say what to look at."""
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._parts.hostname or "", self._parts.port, timeout=timeout_s)
        data = None if body is None else json.dumps(body)
        headers = self._headers | ({"Content-Type": "application/json"} if body is not None else {})
        with closing(connection):
            try:
                connection.request(method, self._parts.path.rstrip("/") + path, data, headers)
                yield connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                raise EngineRequestError(self._what_failed(error, path, timeout_s)) from error

    def _what_failed(self, error: Exception, path: str, timeout_s: float) -> str:
        match error:
            case TimeoutError():
                return f"{self.url}{path} was silent for {timeout_s:g} s: the engine hangs or is busy"
            case ConnectionRefusedError():
                return f"nobody listens at {self.url}: the engine is not running, or listens elsewhere"
            case socket.gaierror():
                return f"{self._parts.hostname} has no address: {error.strerror}"
            case _:
                what = str(error) or type(error).__name__
                return f"{self.url}{path} broke off ({what}): the engine ended or closed the connection"

    def _check(self, response: http.client.HTTPResponse, path: str) -> None:
        if response.status == 200:
            return
        said = _quote(response.read().decode(errors="replace"))
        hint = _HINTS.get(response.status, "")
        raise EngineRequestError(f"{self.url}{path} answered {response.status}{hint}: {said}", response.status)

    def _parsed(self, text: str, path: str) -> Any:
        try:
            return json.loads(text)
        except ValueError as error:
            raise EngineRequestError(f"{self.url}{path} sent no JSON: {_quote(text)}") from error


_HINTS = {
    401: " (it wants a key, or another one: set SLIPSTREAM_API_KEY, or give --api-key-file or --api-key)",
    403: " (the key is not allowed to do this)",
    404: " (no such address: is it another kind of engine, or is the model named differently?)",
    500: " (it failed inside; its log says why)",
    503: " (it is still loading, or overloaded)",
}


def _quote(body: str) -> str:
    with suppress(ValueError):
        body = _message(json.loads(body))
    return " ".join(body.split())[:_QUOTED] or "nothing"


def _message(data: Any) -> str:
    """The words of an error in any of the shapes that engines use."""
    error = data.get("error", data) if isinstance(data, dict) else data
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error
    return str(error)
