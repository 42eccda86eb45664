"""Refusal: a request that gets an error instead of an answer, in the form that OpenAI clients expect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipstream.errors import CapacityError, ContextFullError, SlipstreamError, UsageError


class Refusal(Exception):  # noqa: N818  # it is an answer, not a fault
    """`param` is the field that is wrong, `code` a fixed word for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def to_dict(self) -> dict[str, Any]:
        kind = "server_error" if self.status >= 500 else _TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


_TYPES = {401: "authentication_error", 429: "rate_limit_error"}


def bad_field(param: str, message: str, code: str | None = None) -> Refusal:
    return Refusal(400, message, param=param, code=code)


def refusal_for(error: BaseException) -> Refusal:
    """What the client is told of an error. Errors raised on purpose are told as they are, others by their type only:
    their text may hold paths or parts of prompts."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, ContextFullError | CapacityError):
        return Refusal(400, str(error), code="context_length_exceeded")
    if isinstance(error, UsageError):
        return Refusal(400, str(error))
    if isinstance(error, SlipstreamError):
        return Refusal(500, str(error), code="engine_error")
    return Refusal(500, f"the engine failed on this request ({type(error).__name__})", code="engine_error")
