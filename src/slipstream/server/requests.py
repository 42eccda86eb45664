"""The bodies of requests, as the OpenAI API has them. Unknown fields and wrong types are refused by name.

These classes are also the source of the served OpenAPI document.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, from_json

from slipstream.host import no_collection
from slipstream.server.refusals import Refusal, bad_field
from slipstream.server.settings import BOUNDS

_MAX_SEED = (1 << 63) - 1
_MAX_BIAS = 100.0
_MAX_ERRORS = 200  # in a body; more are not looked at one by one
_MAX_SHOWN_FIELD = 200  # characters of a field's name in a message
_OTHER_TYPE = ("_type", "literal_error")  # how pydantic's names of such errors end

FieldPath = tuple[int | str, ...]  # of a field in a body


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class StreamOptions(Body):
    include_usage: bool | None = None


class DraftingChoice(Body):
    """Overrides how this request is drafted. The text does not depend on it."""

    enabled: bool = True
    drafter: Annotated[str, Field(max_length=100)] | None = Field(
        default=None, description="One of the server's drafters."
    )
    max_draft: Annotated[int, Field(ge=0, le=64)] | None = Field(
        default=None, description="Tokens drafted per step, at most."
    )
    details: bool = Field(default=False, description="Streaming: say of every token who drafted it.")


class JsonSchema(Body):
    name: Annotated[str, Field(max_length=64)] = "answer"
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


Item = TypeVar("Item")
Items = Annotated[list[Item], Field(fail_fast=True)]  # a list of nonsense has one error, not one for each item
Stops = Annotated[str, Field(min_length=1, max_length=BOUNDS.stop_chars)]


class Generating(Body):
    """What chat and text completions share."""

    model: Annotated[str, Field(max_length=500)] | None = Field(None, description="Its name in /v1/models.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=BOUNDS.choices)] | None = None
    stop: Stops | Annotated[Items[Stops], Field(max_length=BOUNDS.stops)] | None = None
    seed: Annotated[int, Field(ge=-_MAX_SEED, le=_MAX_SEED)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=1_000_000)] | None = Field(None, description="0 and -1 are off.")
    min_p: Annotated[float, Field(ge=0, lt=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    logit_bias: (
        Annotated[
            dict[Annotated[str, Field(pattern="^[0-9]{1,9}$")], Annotated[float, Field(ge=-_MAX_BIAS, le=_MAX_BIAS)]],
            Field(max_length=BOUNDS.biases),
        ]
        | None
    ) = None
    max_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    ignore_eos: bool | None = None
    cache_prompt: bool | None = Field(
        default=None,
        description="false: no prompt cache; drafts don't use other requests' text, nor later requests this one's.",
    )
    user: Annotated[str, Field(max_length=1000)] | None = Field(None, description="Accepted and not used.")
    response_format: ResponseFormat | None = None
    speculation: DraftingChoice | None = None

    usual_answer: ClassVar = 1024  # tokens, where it does not say: the cache has to hold a place for as many

    @property
    def answer_tokens(self) -> int | None:
        return self.max_tokens

    @property
    def drafting(self) -> DraftingChoice:
        return self.speculation or DraftingChoice()

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def includes_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class TextPart(Body):
    type: Literal["text"]
    text: str


class FunctionCall(Body):
    name: Annotated[str, Field(max_length=64)]
    arguments: str


class ToolCall(Body):
    id: Annotated[str, Field(max_length=100)]
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Items[TextPart] | None = None
    name: Annotated[str, Field(max_length=100)] | None = None
    tool_calls: Annotated[Items[ToolCall], Field(max_length=BOUNDS.tools)] | None = None
    tool_call_id: Annotated[str, Field(max_length=100)] | None = None
    refusal: None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class FunctionSpec(Body):
    name: Annotated[str, Field(pattern="^[a-zA-Z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    type: Literal["function"]
    function: FunctionSpec


class NamedFunction(Body):
    name: Annotated[str, Field(max_length=64)]


class ToolChoice(Body):
    type: Literal["function"]
    function: NamedFunction


class ChatRequest(Generating):
    messages: Annotated[Items[ChatMessage], Field(min_length=1, max_length=BOUNDS.messages)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=BOUNDS.top_logprobs)] | None = None
    tools: Annotated[Items[Tool], Field(max_length=BOUNDS.tools)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    @property
    def answer_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


TokenIds = Annotated[Items[Annotated[int, Field(ge=0, le=1 << 24)]], Field(min_length=1)]

Several = Annotated[Items[Item], Field(min_length=1, max_length=BOUNDS.prompts)]


class CompletionRequest(Generating):
    prompt: str | TokenIds | Several[str] | Several[TokenIds]
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=BOUNDS.top_logprobs)] | None = None
    best_of: Literal[1] | None = None
    suffix: None = Field(None, description="Not supported.")

    usual_answer: ClassVar = 16  # as in OpenAI's API

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs


Parsed = TypeVar("Parsed", bound=Generating)


def parse(kind: type[Parsed], body: bytes) -> Parsed:
    """Raises Refusal with the name of the first field that is wrong."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        if error.error_count() > _MAX_ERRORS:
            message = f"the body has {error.error_count():,} errors; /openapi.json describes what a request may hold"
            raise Refusal(400, message) from None
        raise _refusal(error.errors(include_url=False, include_context=False, include_input=False), body) from None


def _refusal(errors: list[ErrorDetails], body: bytes) -> Refusal:
    if errors[0]["type"] == "json_invalid":
        return Refusal(400, f"the body is not valid JSON: {errors[0]['msg'].removeprefix('Invalid JSON: ')}")
    with no_collection():
        data = from_json(body)
    path, found = _first_field(errors, data)
    name = ".".join(map(str, path))[:_MAX_SHOWN_FIELD]
    if found[0]["type"] == "extra_forbidden":
        return bad_field(name, f"{name}: this field is unknown or not supported", "unknown_field")
    if found[0]["type"] == "missing":
        return bad_field(name, f"{name}: this field is required", "missing_field")
    expected = " or ".join(dict.fromkeys(error["msg"] for error in found)).replace(" or Input should be", " or")
    return bad_field(name, f"{name or 'body'}: {expected}")


def _first_field(errors: list[ErrorDetails], data: Any) -> tuple[FieldPath, list[ErrorDetails]]:
    """The first field that is wrong, and its errors. Of a union, those of the branches that fit best: they fail last,
    or are of the right type."""
    start = errors[0]["loc"][: len(_path(errors[0], data))]
    branches: dict[FieldPath, ErrorDetails] = {}
    for error in errors:
        if error["loc"][: len(start)] == start:
            branches.setdefault(error["loc"][: len(start) + 1], error)
    ranks = [(_path(error, data), not error["type"].endswith(_OTHER_TYPE)) for error in branches.values()]
    best = max(ranks)
    return best[0], [error for error, rank in zip(branches.values(), ranks, strict=True) if rank == best]


def _path(error: ErrorDetails, data: Any) -> FieldPath:
    """Where in `data` it is. The `loc` of pydantic has the names of a union's branches as well."""
    path: list[int | str] = []
    for part in error["loc"]:
        known = data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
        if part in known:
            data = data[part]
        elif error["type"] != "missing" or part != error["loc"][-1]:
            continue
        path.append(part)
    return tuple(path)
