"""ServeOptions: the options of `slipstream serve`, and the limits that protect the server."""

from __future__ import annotations

import ipaddress
import math
import re
from dataclasses import dataclass, field
from pathlib import Path

from slipstream.errors import UsageError

_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")  # as browsers send it


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Where the server listens, who may use it, and how much of it."""

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    api_key_file: Path | None = None  # one key a line
    allow_anonymous: bool = False  # listen on a public address without a key
    cors_origins: tuple[str, ...] = ()  # web pages of other origins that may use the API
    max_streams: int = 32  # answers that are generated at the same time
    max_queue: int = 256  # requests that wait for a place; more are refused with 429
    max_tokens: int = 4096  # of one answer
    request_limit: float = 600.0  # seconds of one request, waiting included
    idle_limit: float = 60.0  # seconds that a client may take to send its request, or to read a part of the answer
    drain_limit: float = 30.0  # seconds that running answers get when the server stops
    max_stall: float = 0.25  # seconds of a step that reads long prompts, while other answers wait for it
    max_connections: int = 1024

    def __post_init__(self) -> None:
        for name in ("max_streams", "max_tokens", "max_connections"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}; expected 1 or more")
        for name in ("request_limit", "idle_limit", "drain_limit", "max_stall", "max_queue"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(f"{name} is {getattr(self, name)}; expected 0 or more, and finite")
        for origin in self.cors_origins:
            if not _ORIGIN.fullmatch(origin):
                raise UsageError(
                    f"--cors-origin {origin!r} is no origin; expected * or scheme://host[:port] in lower case, such as "
                    "https://example.org"
                )

    @property
    def is_public(self) -> bool:
        """Whether other machines can connect."""
        if self.host == "localhost":
            return False
        try:
            return not ipaddress.ip_address(self.host).is_loopback
        except ValueError:  # a name: it may be any address
            return True


@dataclass(frozen=True, slots=True)
class RequestBounds:
    """What one request may hold. Far above normal use; what a single request costs stays small."""

    body_bytes: int = 4 << 20  # 100,000 tokens of text are about 0.5 MB
    messages: int = 2048
    choices: int = 16  # n
    prompts: int = 64  # of a list of prompts
    stops: int = 16
    stop_chars: int = 256
    biases: int = 1024
    top_logprobs: int = 20  # as in OpenAI's API
    tools: int = 128
    schema_bytes: int = 64 << 10
    schemas_bytes: int = 512 << 10  # of all tools together
    schema_depth: int = 32


BOUNDS = RequestBounds()
