"""Reading a request's body: JSON, of bounded size, within a bounded time."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from slipstream.server.refusals import Refusal


async def read_body(request: Request, max_bytes: int, limit_s: float) -> bytes:
    """Raises Refusal: 415 for another type, 413 for a body that is too long, 408 for one that takes too long."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refusal(415, "the content type has to be application/json")
    too_long = Refusal(413, f"the body has more than {max_bytes:,} bytes", code="body_too_large")
    stated = request.headers.get("content-length", "0")
    if stated.isdecimal() and int(stated[:20]) > max_bytes:
        raise too_long
    try:
        async with asyncio.timeout(limit_s or None):
            body = await _read(request, max_bytes)
    except TimeoutError:
        raise Refusal(408, f"the body did not arrive within {limit_s:g} seconds", code="timeout") from None
    except ClientDisconnect:
        raise Refusal(400, "the client closed the connection") from None
    if body is None:
        raise too_long
    return body


async def _read(request: Request, max_bytes: int) -> bytes | None:
    """None if it is longer."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > max_bytes:
            return None
        parts.append(part)
    return b"".join(parts)
