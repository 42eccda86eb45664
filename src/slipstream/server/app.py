"""The routes of the server, as an ASGI application."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

from slipstream.server.body import read_body
from slipstream.server.keys import ApiKeys
from slipstream.server.metrics import CONTENT_TYPE
from slipstream.server.openapi import openapi
from slipstream.server.preparing import Prepared, prepare_chat, prepare_completion
from slipstream.server.protection import ConnectionLimit, HostNames, RequestCount, SecurityHeaders
from slipstream.server.refusals import Refusal, refusal_for
from slipstream.server.requests import ChatRequest, CompletionRequest, Parsed, parse
from slipstream.server.responding import Responder
from slipstream.server.service import Service
from slipstream.server.settings import BOUNDS

PAGE = Path(__file__).parent / "page"
_LOCAL_NAMES = ["localhost", "127.0.0.1", "[::1]"]


def make_app(service: Service) -> Starlette:
    @asynccontextmanager
    async def running(app: Starlette) -> AsyncIterator[None]:
        service.scheduler.start()
        ticking = asyncio.create_task(_tick(service))
        yield
        ticking.cancel()
        await asyncio.to_thread(service.scheduler.stop)

    routes = Routes(service)
    need_key = [
        Route("/v1/chat/completions", routes.chat, methods=["POST"]),
        Route("/v1/completions", routes.completions, methods=["POST"]),
        Route("/v1/models", routes.models),
        Route("/v1/models/{model:path}", routes.model),
        Route("/v1/slipstream/stats", routes.stats),
        Route("/metrics", routes.metrics),
    ]
    need_none = [
        Route("/health", routes.health),
        Route("/ready", routes.ready),
        Route("/openapi.json", routes.openapi),
        *_page_routes(),
    ]
    return Starlette(
        routes=[*(_with_key(route, service.keys) for route in need_key), *need_none],
        middleware=_middleware(service),
        exception_handlers={Refusal: _refused, HTTPException: _http_error, Exception: _failed},
        lifespan=running,
    )


def _with_key(route: Route, keys: ApiKeys) -> Route:
    """The route for those alone who send an API key; `key` of the request's state is its name."""

    async def checked(http: Request) -> Response:
        http.state.key = keys.identify(http.headers.get("authorization"))
        response: Response = await route.endpoint(http)
        return response

    return Route(route.path, checked, methods=list(route.methods or ()))


def _page_routes() -> list[Route]:
    """One for each file, so that any other path is unknown."""
    files = StaticFiles(directory=PAGE)

    def route(path: str, name: str) -> Route:
        async def file(http: Request) -> Response:
            return await files.get_response(name, http.scope)

        return Route(path, file)

    names = [path.relative_to(PAGE).as_posix() for path in PAGE.rglob("*") if path.is_file()]
    return [route("/", "index.html"), *(route(f"/{name}", name) for name in names)]


def _middleware(service: Service) -> list[Middleware]:
    options = service.options
    chain = [
        Middleware(SecurityHeaders),
        Middleware(RequestCount, metrics=service.scheduler.metrics),
        Middleware(ConnectionLimit, most=options.max_connections),
    ]
    if not options.is_public:  # a web page whose name resolves to this machine is not one of ours
        allowed_names = [*_LOCAL_NAMES, options.host]
        chain.append(Middleware(HostNames, allowed=allowed_names))
    if options.cors_origins:
        allowed: dict[str, Any] = {"allow_methods": ["GET", "POST"], "allow_headers": ["Authorization", "Content-Type"]}
        chain.append(Middleware(CORSMiddleware, allow_origins=list(options.cors_origins), **allowed))
    return chain


async def _tick(service: Service) -> None:
    while True:
        await asyncio.sleep(1.0)
        service.live.tick()


Prepare = Callable[[Service, Any], Prepared]


class Routes:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._document = openapi(service.model, service.options.max_tokens, bool(service.keys))
        self._started = int(time.time())

    async def chat(self, http: Request) -> Response:
        return await self._generate(http, ChatRequest, prepare_chat)

    async def completions(self, http: Request) -> Response:
        return await self._generate(http, CompletionRequest, prepare_completion)

    async def _generate(self, http: Request, kind: type[Parsed], prepare: Prepare) -> Response:
        """The path of every answer: what is asked for, and then the answer."""
        body = await read_body(http, BOUNDS.body_bytes, self._service.options.idle_limit)
        request = parse(kind, body)
        try:
            prepared = await asyncio.to_thread(prepare, self._service, request)
        except Refusal:
            raise
        except Exception as error:
            raise refusal_for(error) from error
        return await Responder(self._service, request, prepared, http.state.key).respond(http)

    async def models(self, http: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, http: Request) -> Response:
        if http.path_params["model"] != self._service.model:
            raise Refusal(404, "there is no such model", param="model", code="model_not_found")
        return JSONResponse(self._model())

    def _model(self) -> dict[str, Any]:
        info = self._service.engine.target.info
        drafter = self._service.engine.drafter
        return {
            "id": info.name,
            "object": "model",
            "created": self._started,
            "owned_by": "slipstream",
            "slipstream": {
                "context_length": info.context_length,
                "backend": info.backend,
                "device": info.device,
                "dtype": info.dtype,
                "drafter": drafter.name if drafter else None,
                "drafters": list(self._service.drafters),
                "max_tokens": self._service.options.max_tokens,
            },
        }

    async def stats(self, http: Request) -> Response:
        return JSONResponse(self._service.live.to_dict(), headers={"Cache-Control": "no-store"})

    async def health(self, http: Request) -> Response:
        if not self._service.scheduler.is_alive:
            raise Refusal(503, "the engine's thread has ended")
        return JSONResponse({"status": "ok"})

    async def ready(self, http: Request) -> Response:
        if self._service.scheduler.is_draining or not self._service.scheduler.is_alive:
            raise Refusal(503, "the server is shutting down", code="shutting_down")
        return JSONResponse({"status": "ready", "model": self._service.model})

    async def metrics(self, http: Request) -> Response:
        return Response(self._service.scheduler.metrics.text(), media_type=CONTENT_TYPE)

    async def openapi(self, http: Request) -> Response:
        return JSONResponse(self._document)


async def _refused(http: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return JSONResponse(error.to_dict(), error.status, headers=error.headers)


async def _http_error(http: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    refusal = Refusal(error.status_code, f"{http.method} {http.url.path}: {error.detail}")
    return JSONResponse(refusal.to_dict(), refusal.status, headers=error.headers)


async def _failed(http: Request, error: Exception) -> Response:
    return JSONResponse(refusal_for(error).to_dict(), 500)
