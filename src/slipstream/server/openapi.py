"""The served OpenAPI document, made of the classes that check the requests."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import models_json_schema

from slipstream.server.requests import ChatRequest, CompletionRequest

_API_VERSION = "1"
_REF = "#/components/schemas/{model}"
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_STATUSES = {
    "400": "the request is wrong; param names the field",
    "401": "the API key is missing or wrong",
    "404": "there is no such model",
    "408": "the body took too long to arrive",
    "413": "the body is too large",
    "415": "the body is not JSON",
    "429": "too many requests wait; Retry-After says when to come back",
    "500": "the engine failed on this request",
    "503": "the server is shutting down",
    "504": "the answer took too long",
}


def openapi(model: str, max_tokens: int, needs_key: bool) -> dict[str, Any]:
    _, definitions = models_json_schema(
        [(ChatRequest, "validation"), (CompletionRequest, "validation")], ref_template=_REF
    )
    schemas = definitions["$defs"] | {"Error": _ERROR}
    for name in ("ChatRequest", "CompletionRequest"):
        fields = schemas[name]["properties"]
        fields["model"] |= {"anyOf": [{"const": model}, {"type": "null"}]}
        for limit in {"max_tokens", "max_completion_tokens"} & fields.keys():
            bounded = {"type": "integer", "minimum": 1, "maximum": max_tokens}
            fields[limit] |= {"anyOf": [bounded, {"type": "null"}]}
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Slipstream", "version": _API_VERSION},
        "paths": {
            "/v1/chat/completions": {"post": _generating("ChatRequest", "Answers a conversation.")},
            "/v1/completions": {"post": _generating("CompletionRequest", "Continues a text.")},
            "/v1/models": {"get": _reading("The model that is served.", "401")},
            "/v1/slipstream/stats": {"get": _reading("Live figures of the engine.", "401")},
            "/health": {"get": _reading("Whether the server runs.", "503")},
            "/ready": {"get": _reading("Whether it takes requests.", "503")},
        },
        "components": {"schemas": schemas},
    }
    if needs_key:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


def _generating(schema: str, summary: str) -> dict[str, Any]:
    events = {"schema": {"type": "object", "properties": {"data": {"type": "string"}}}}
    return {
        "summary": summary,
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": _REF.format(model=schema)}}},
        },
        "responses": {
            "200": {
                "description": "the answer, or its events with stream",
                "content": {"application/json": {"schema": {"type": "object"}}, "text/event-stream": events},
            }
        }
        | {status: _error(text) for status, text in _STATUSES.items()},
    }


def _reading(summary: str, *errors: str) -> dict[str, Any]:
    good = {"description": summary, "content": {"application/json": {"schema": {"type": "object"}}}}
    return {"summary": summary, "responses": {"200": good} | {status: _error(_STATUSES[status]) for status in errors}}


def _error(text: str) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": {"$ref": _REF.format(model="Error")}}}}
