"""What protects the server and its page: middleware, and the time for the header of a request."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable

import h11
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from slipstream.server.metrics import ServerMetrics
from slipstream.server.refusals import Refusal

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # the page's files belong together: after an update none of them may be an old one
}

_PORT = re.compile(":[0-9]*$")
_COUNTED = ("/v1/chat/completions", "/v1/completions", "/v1/models")


class SecurityHeaders:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, with_headers)


class RequestCount:
    """Counts the requests of the API by their status; 499 is a client that left."""

    def __init__(self, app: ASGIApp, metrics: ServerMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in _COUNTED:
            await self._app(scope, receive, send)
            return
        started, status, is_complete = time.perf_counter(), 499, False

        async def noting(message: Message) -> None:
            nonlocal status, is_complete
            if message["type"] == "http.response.start":
                status = message["status"]
            is_complete = message["type"] == "http.response.body" and not message.get("more_body")
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            self._metrics.answered(scope["path"], status if is_complete else 499, time.perf_counter() - started)


class ConnectionLimit:
    """Refuses requests beyond a number that are open at the same time. /health and /ready always answer."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app = app
        self._most = most
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in ("/health", "/ready"):
            await self._app(scope, receive, send)
            return
        if self._open >= self._most:
            message, headers = "too many open requests: try again later", {"Retry-After": "2"}
            refusal = Refusal(503, message, code="too_many_requests", headers=headers)
            await _refuse(refusal, scope, receive, send)
            return
        self._open += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._open -= 1


class HostNames:
    """Refuses requests to other host names than those allowed."""

    def __init__(self, app: ASGIApp, allowed: Iterable[str]) -> None:
        self._app = app
        self._allowed = dict.fromkeys(name.lower() for name in allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _PORT.sub("", Headers(scope=scope).get("host", "")).lower() in self._allowed:
            await self._app(scope, receive, send)
            return
        message = f"the Host header is not a name of this server; expected {', '.join(self._allowed)}"
        await _refuse(Refusal(400, message, code="unknown_host"), scope, receive, send)


class TimedProtocol(H11Protocol):
    """Closes a connection whose next header takes longer than `timeout_keep_alive`. uvicorn alone waits without a limit
    for the first header, and for the rest of any."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._header_timer.cancel()
        elif self._header_timer.cancelled():
            self._start_timer()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._header_timer.cancel()

    def _start_timer(self) -> None:
        self._header_timer = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)


async def _refuse(refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
    response = JSONResponse(refusal.to_dict(), refusal.status, headers=refusal.headers)
    await response(scope, receive, send)
