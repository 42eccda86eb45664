"""From an answer's tokens to HTTP: one JSON object, or events as the tokens come."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from slipstream.core.stream import Token
from slipstream.server import figures
from slipstream.server.answers import Envelope, token_details
from slipstream.server.preparing import Prepared
from slipstream.server.refusals import Refusal, refusal_for
from slipstream.server.requests import Generating
from slipstream.server.scheduler import Job
from slipstream.server.service import Service

_DONE = b"data: [DONE]\n\n"
News = tuple[int, list[Token]]  # of one of the jobs: its index and its new tokens; none: it is complete
Done = TypeVar("Done")


def event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n\n"


class EventResponse(StreamingResponse):
    """Events. A client that does not read for `idle_s` is disconnected; a slow one does not delay others. `on_end` is
    called in any case, even if the client is gone before the first event.
    """

    def __init__(self, events: AsyncIterator[bytes], idle_s: float, on_end: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        self._idle_s = idle_s
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()

    async def stream_response(self, send: Send) -> None:
        async def send_in_time(message: Any) -> None:
            async with asyncio.timeout(self._idle_s or None):
                await send(message)

        try:
            await super().stream_response(send_in_time)
        except TimeoutError:
            return  # whoever does not read gets nothing more; the server closes the connection


class Responder:
    """Answers one request."""

    def __init__(self, service: Service, request: Generating, prepared: Prepared, key: str) -> None:
        self._service = service
        self._request = request
        self._prepared = prepared
        self._key = key

    async def respond(self, http: Request) -> Response:
        """Raises Refusal for what ends the answer before its first byte, so that its status says so."""
        jobs = self._service.scheduler.submit(self._prepared.calls, self._key)
        try:
            return await (self._stream if self._request.stream else self._whole)(http, jobs)
        except BaseException:
            self._service.scheduler.cancel(jobs)
            raise

    # -- one object -------------------------------------------------------------------------------------------------

    async def _whole(self, http: Request, jobs: Sequence[Job]) -> Response:
        return JSONResponse(self._object(jobs, await _while_connected(http, self._read_all(jobs))))

    async def _read_all(self, jobs: Sequence[Job]) -> list[list[Token]]:
        tokens: list[list[Token]] = [[] for _ in jobs]
        async for index, more in self._read(jobs):
            tokens[index] += more
        return tokens

    def _object(self, jobs: Sequence[Job], tokens: list[list[Token]]) -> dict[str, Any]:
        form = self._prepared.format
        choices = [
            form.whole(index, "".join(token.text for token in of_job), of_job, _reason(job))
            for index, (job, of_job) in enumerate(zip(jobs, tokens, strict=True))
        ]
        return form.envelope(self._service.model, False).wrap(choices, **self._figures(jobs))

    # -- events -----------------------------------------------------------------------------------------------------

    async def _stream(self, http: Request, jobs: Sequence[Job]) -> Response:
        later = self._read(jobs)
        news = _chained(await _while_connected(http, anext(later)), later)
        on_end = partial(self._service.scheduler.cancel, jobs)
        return EventResponse(self._events(jobs, news), self._service.options.idle_limit, on_end)

    async def _events(self, jobs: Sequence[Job], news: AsyncIterator[News]) -> AsyncIterator[bytes]:
        try:
            async for part in self._parts(jobs, news):
                yield event(part)
            yield _DONE
        except Exception as error:  # the status is sent already, so the error is an event
            yield event(refusal_for(error).to_dict())

    async def _parts(self, jobs: Sequence[Job], news: AsyncIterator[News]) -> AsyncIterator[dict[str, Any]]:
        form = self._prepared.format
        envelope = form.envelope(self._service.model, True)
        num_left = len(jobs)
        for index in range(len(jobs)):
            if (opening := form.opening(index)) is not None:
                yield envelope.wrap([opening])
        async for index, tokens in news:
            if not tokens:
                num_left -= 1
                yield self._ending(envelope, jobs, index, is_last=not num_left)
                continue
            text = form.sendable(index, "".join(token.text for token in tokens))
            if text or self._request.drafting.details or tokens[0].logprobs:
                yield self._chunk(envelope, form.part(index, text, tokens), tokens)
        if self._request.includes_usage:
            yield envelope.wrap([], **self._figures(jobs))

    def _chunk(self, envelope: Envelope, choice: dict[str, Any], tokens: Sequence[Token]) -> dict[str, Any]:
        if not self._request.drafting.details:
            return envelope.wrap([choice])
        return envelope.wrap([choice], slipstream=token_details(tokens))

    def _ending(self, envelope: Envelope, jobs: Sequence[Job], index: int, is_last: bool) -> dict[str, Any]:
        with_figures = is_last and not self._request.includes_usage
        more = self._figures(jobs, with_usage=False) if with_figures else {}
        return envelope.wrap([self._prepared.format.ending(index, _reason(jobs[index]))], **more)

    # -- both -------------------------------------------------------------------------------------------------------

    def _figures(self, jobs: Sequence[Job], with_usage: bool = True) -> dict[str, Any]:
        found = {"usage": figures.usage(jobs, self._prepared.num_prompts)} if with_usage else {}
        return found | {"slipstream": figures.speculation(jobs, self._service.scheduler.report)}

    def _read(self, jobs: Sequence[Job]) -> AsyncIterator[News]:
        return self._service.scheduler.read(jobs, self._service.options.request_limit or None)


def _reason(job: Job) -> str:
    """Of a complete answer."""
    assert job.stream and job.stream.finish_reason
    return job.stream.finish_reason


async def _chained(first: News, later: AsyncIterator[News]) -> AsyncIterator[News]:
    yield first
    async for news in later:
        yield news


async def _while_connected(http: Request, work: Awaitable[Done]) -> Done:
    """Its result. Raises Refusal if the client leaves before."""
    working, leaving = asyncio.ensure_future(work), asyncio.create_task(_disconnected(http))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Refusal(499, "the client closed the connection")
        return await working
    finally:
        working.cancel()
        leaving.cancel()


async def _disconnected(http: Request) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass
