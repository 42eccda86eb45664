"""Runs the server: binds the address, loads the model, serves until a signal, and lets running answers finish."""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn

from slipstream.core.engine import Engine
from slipstream.core.stream import Drafter
from slipstream.core.team import DrafterTeam, members_of
from slipstream.drafters.grammar import GrammarDrafter
from slipstream.drafters.ngram import NgramDrafter
from slipstream.drafters.suffix import SuffixDrafter
from slipstream.errors import UsageError
from slipstream.models.text.tokenizer import Tokenizer
from slipstream.server.app import make_app
from slipstream.server.engine_metrics import EngineCollector
from slipstream.server.grammar import Grammars
from slipstream.server.keys import ApiKeys
from slipstream.server.live_stats import LiveStats
from slipstream.server.metrics import ServerMetrics
from slipstream.server.protection import TimedProtocol
from slipstream.server.scheduler import Scheduler
from slipstream.server.service import Service
from slipstream.server.settings import ServeOptions

log = logging.getLogger("slipstream")

_AFTER_DRAIN_S = 5  # for the last words of answers that were ended
_MAX_HEADER_BYTES = 64 << 10
_NO_LIMIT_S = 365 * 24 * 3600  # a year: uvicorn takes no "never"


class GracefulServer(uvicorn.Server):
    """Ends with exit code 0: answers that run when a signal comes get `drain_limit` seconds, then an error."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self.on_ready: Callable[[], None] = lambda: None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.on_ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Without raising them again at the end, as uvicorn does."""
        is_main = threading.current_thread() is threading.main_thread()
        handled = (signal.SIGINT, signal.SIGTERM) if is_main else ()
        before = {number: signal.signal(number, self.handle_exit) for number in handled}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        scheduler, limit_s = self._service.scheduler, self._service.options.drain_limit
        scheduler.begin_drain()
        if count := scheduler.num_active:
            noun = "answer has" if count == 1 else "answers have"
            log.warning("stopping; %d running %s up to %g s to end", count, noun, limit_s)
        reason = f"the server is shutting down; the answer did not end within {limit_s:g} seconds"
        ending = asyncio.get_running_loop().call_later(limit_s, scheduler.end_all, reason)
        await super().shutdown(sockets)
        ending.cancel()


def bind(options: ServeOptions) -> socket.socket:
    """The address, before anything is loaded; nobody can connect yet. Raises UsageError."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        raise UsageError(
            f"can't listen on {options.host}:{options.port}: {error.strerror or error}; choose another --port"
        ) from error
    return bound


def make_service(engine: Engine, tokenizer: Tokenizer, options: ServeOptions, keys: ApiKeys) -> Service:
    metrics = ServerMetrics()
    scheduler = Scheduler(engine, options.max_streams, options.max_queue, metrics)
    metrics.registry.register(EngineCollector(scheduler))
    grammars = Grammars(tokenizer, engine.target.info.vocab_size)
    drafters = _drafters(engine)
    others = [drafter for drafter in members_of(engine.drafter) if drafter.name != "grammar"]
    forced_first = DrafterTeam([drafters["grammar"], *others])
    return Service(
        engine=engine,
        tokenizer=tokenizer,
        drafters=drafters,
        grammar_drafter=forced_first,
        options=options,
        keys=keys,
        scheduler=scheduler,
        grammars=grammars,
        live=LiveStats(scheduler),
    )


def _drafters(engine: Engine) -> dict[str, Drafter]:
    """Those of the engine, and the ones that need no model."""
    own = [engine.drafter, *members_of(engine.drafter)] if engine.drafter else []
    free: dict[str, Callable[[], Drafter]] = {"suffix": SuffixDrafter, "ngram": NgramDrafter, "grammar": GrammarDrafter}
    named = {drafter.name: drafter for drafter in own}
    return named | {name: make() for name, make in free.items() if name not in named}


def make_server(service: Service) -> GracefulServer:
    options = service.options
    config = uvicorn.Config(
        make_app(service),
        http=TimedProtocol,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        timeout_keep_alive=math.ceil(options.idle_limit) or _NO_LIMIT_S,
        timeout_graceful_shutdown=int(options.drain_limit) + _AFTER_DRAIN_S,
        h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
    )
    return GracefulServer(config, service)


def run(service: Service, bound: socket.socket, on_ready: Callable[[str], None]) -> None:
    """Serves until SIGINT or SIGTERM. `on_ready` gets the address when requests are taken."""
    server = make_server(service)
    server.on_ready = lambda: on_ready(address(bound))
    server.run(sockets=[bound])


def address(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
