"""Client: sends requests to an engine over HTTP and reads streams of JSON events. Failures raise EngineRequestError.

Uses the standard library, because the HTTP package installed with the hub's client depends on its version.
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

_QUOTED = 300  # characters of an error's body to show


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds without data before an engine counts as not responding."""

    answer_s: float = 300.0  # the first token of a long prompt takes long
    figures_s: float = 5.0  # metrics, health, slots


class Client:
    """A client of one engine at `url`. Every call opens its own connection, so threads may share a client.

    `log` is the engine's log on this machine, for engines that report figures nowhere else; None if unknown.
    """

    def __init__(
        self, url: str, api_key: str | None = None, timeouts: Timeouts | None = None, log: Path | None = None
    ) -> None:
        """Raises UsageError for an invalid URL."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(
                f"{redacted_text(url)!r} is not a valid engine URL; expected for example http://127.0.0.1:8080"
            )
        self.url = redacted_text(url).rstrip("/")  # as messages show it
        self.log = log
        self.timeouts = timeouts or Timeouts()
        self._parts = parts
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    def log_text(self) -> str:
        """The engine's log so far; empty if it is not known here."""
        return self.log.read_text(errors="replace") if self.log and self.log.exists() else ""

    def is_ready(self, path: str) -> bool:
        """Whether `path` answers 200; False if nothing listens there yet."""
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
        """One JSON response. Waits as long as for the first token of an answer, unless `timeout_s` is given."""
        with self._open("POST", path, body, timeout_s or self.timeouts.answer_s) as response:
            self._check(response, path)
            return self._parsed(response.read().decode(errors="replace"), path)

    def stream(self, request: Request) -> Iterator[Mapping[str, Any]]:
        """The events of an answer as they come: server-sent events (`data: {…}`) or a JSON object a line.

        Ends when the engine ends the stream; the caller checks whether the answer is complete. An error event raises
        EngineRequestError with the engine's message.
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
                    raise EngineRequestError(f"{self.url}{request.path} failed: {_message(event)}")
                yield event

    @contextmanager
    def _open(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float
    ) -> Iterator[http.client.HTTPResponse]:
        """Connection failures, including those while the answer is read, become errors that say what to check."""
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
                return f"{self.url}{path} did not respond for {timeout_s:g} s: the engine hangs or is busy"
            case ConnectionRefusedError():
                return f"nothing listens at {self.url}: the engine is not running, or uses another address"
            case socket.gaierror():
                return f"the host {self._parts.hostname} was not found: {error.strerror}"
            case _:
                what = str(error) or type(error).__name__
                return f"the connection to {self.url}{path} was lost ({what}): the engine exited or closed it"

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
            raise EngineRequestError(f"{self.url}{path} did not send JSON: {_quote(text)}") from error


_HINTS = {
    401: " (it requires an API key, or a different one: set SLIPSTREAM_API_KEY, or use --api-key-file or --api-key)",
    403: " (the API key has no permission for this)",
    404: " (not found: it may be another kind of engine, or the model may have another name)",
    500: " (internal error; see its log)",
    503: " (it is still loading, or overloaded)",
}


def _quote(body: str) -> str:
    with suppress(ValueError):
        body = _message(json.loads(body))
    return " ".join(body.split())[:_QUOTED] or "nothing"


def _message(data: Any) -> str:
    """The message of an error in any of the formats that engines use."""
    error = data.get("error", data) if isinstance(data, dict) else data
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error
    return str(error)
