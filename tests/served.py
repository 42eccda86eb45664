"""A server in a thread, for tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from slipstream.core.engine import Engine
from slipstream.models.text.tokenizer import Tokenizer
from slipstream.server.keys import read_keys
from slipstream.server.run import address, bind, make_server, make_service
from slipstream.server.service import Service
from slipstream.server.settings import ServeOptions


@dataclass(frozen=True)
class Served:
    url: str
    service: Service

    @property
    def num_active(self) -> int:
        return self.service.scheduler.num_active


@contextmanager
def served(engine: Engine, tokenizer: Tokenizer, **options: Any) -> Iterator[Served]:
    given = ServeOptions(port=0, **({"drain_limit": 5.0} | options))
    service = make_service(engine, tokenizer, given, read_keys(given))
    with bind(given) as bound:
        server, ready = make_server(service), threading.Event()
        server.on_ready = ready.set
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        assert ready.wait(30)
        try:
            yield Served(address(bound), service)
        finally:
            server.should_exit = True
            thread.join(60)
            assert not thread.is_alive()


def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    return condition()
