"""Plan: one request of a case, who reads it, and what is expected of it."""

from __future__ import annotations

from dataclasses import dataclass

from fuzz.bad_request import BadRequest
from fuzz.consumer import Consumer
from fuzz.oracle import Answer
from fuzz.request import Request


@dataclass(eq=False)
class Plan:
    """`expected` is the oracle's answer of a good request with the matching verifier, and None of others."""

    request: Request | BadRequest
    consumer: Consumer
    expected: Answer | None = None
    engine_index: int = 0
    drafter_name: str = "none"

    @property
    def is_good(self) -> bool:
        return isinstance(self.request, Request)

    @property
    def name(self) -> str:
        if isinstance(self.request, BadRequest):
            return f"bad request {self.request.name!r}"
        return f"{self.request.verifier} request with drafter {self.drafter_name!r}"
