"""From a checked request to the calls of the engine: prompt ids, sampling, limits, drafter."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.core.sampling import LEAST_TEMPERATURE, Sampling
from slipstream.core.stream import Drafter, Limits, RequestOptions
from slipstream.errors import SlipstreamError
from slipstream.server.answers import AnswerFormat, ChatFormat, CompletionFormat
from slipstream.server.grammar import ANY_OBJECT, GrammarConstraint, check_sizes
from slipstream.server.refusals import Refusal, bad_field
from slipstream.server.requests import ChatRequest, CompletionRequest, DraftingChoice, Generating
from slipstream.server.scheduler import AnswerCall
from slipstream.server.service import Service
from slipstream.server.settings import BOUNDS
from slipstream.server.tool_formats import template_messages, tool_use

AnyRequest = ChatRequest | CompletionRequest
_SEEDS = 1 << 64


@dataclass(frozen=True, slots=True)
class Prepared:
    """The answers that one request asks for."""

    calls: Sequence[AnswerCall]
    format: AnswerFormat
    num_prompts: int = 1


def prepare_chat(service: Service, request: ChatRequest) -> Prepared:
    """Runs outside the event loop: long prompts take a while. Raises Refusal."""
    _check_model(service, request)
    if request.top_logprobs is not None and not request.logprobs:
        raise bad_field("top_logprobs", "top_logprobs: needs logprobs: true")
    parameters = [tool.function.parameters or {} for tool in request.tools or ()]
    check_sizes({f"tools.{index}.function.parameters": schema for index, schema in enumerate(parameters)})
    use = tool_use(request, service.tokenizer.chat_template)
    if use and _schema(request) is not None:
        raise bad_field("response_format", "response_format: not supported together with tools")
    tools = [tool.model_dump(exclude_none=True) for tool in use.tools] if use else None
    try:
        prompt = service.tokenizer.chat_ids(template_messages(request.messages), tools=tools)
    except SlipstreamError as error:
        raise Refusal(400, str(error), param="messages") from None
    chat_format = ChatFormat(service.tokenizer.vocabulary.spelled_bytes, request.num_logprobs is not None, use)
    lark = use.grammar() if use else None
    return Prepared(_calls(service, request, [prompt], lark), chat_format)


def prepare_completion(service: Service, request: CompletionRequest) -> Prepared:
    """Like `prepare_chat`."""
    _check_model(service, request)
    if request.echo and request.logprobs is not None:
        raise bad_field("echo", "echo: not supported together with logprobs")
    prompts = _prompts(request)
    if len(prompts) * (request.n or 1) > BOUNDS.prompts:
        raise bad_field("n", f"n: more than {BOUNDS.prompts} answers in one request")
    ids = [service.tokenizer.prompt_ids(prompt) if isinstance(prompt, str) else prompt for prompt in prompts]
    echoes = []
    if request.echo:
        texts = [p if isinstance(p, str) else service.tokenizer.decode(p) for p in prompts]
        echoes = [text for text in texts for _ in range(request.n or 1)]
    spell = service.tokenizer.vocabulary.spelled_bytes
    return Prepared(
        _calls(service, request, ids), CompletionFormat(spell, request.logprobs is not None, echoes), len(prompts)
    )


def _prompts(request: CompletionRequest) -> list[str | list[int]]:
    prompt = request.prompt
    return [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else list(prompt)


def _check_model(service: Service, request: Generating) -> None:
    """There is one model; a request may name it or not."""
    if request.model not in (None, service.model):
        message = f"model: {request.model!r} is not served here; the model is {service.model!r}"
        raise Refusal(404, message, param="model", code="model_not_found")


def _calls(
    service: Service, request: AnyRequest, prompts: Sequence[list[int]], lark: str | None = None
) -> list[AnswerCall]:
    """`lark`: a grammar that the answers have to fit."""
    limits = Limits(_answer_tokens(service, request), request.stop_strings, ignore_eos=bool(request.ignore_eos))
    seed = secrets.randbits(63) if request.seed is None else request.seed
    calls = []
    for ids in prompts:
        for choice in range(request.n or 1):
            constraint = _constraint(service, request, lark)  # one for each stream: it follows the answer
            is_cold = request.cache_prompt is False
            options = RequestOptions(request.drafting.max_draft, request.num_logprobs, constraint, is_cold)
            drafter, sampling = _drafter(service, request.drafting, bool(constraint)), _sampling(request, seed + choice)
            service.engine.check(ids, sampling)
            calls.append(AnswerCall(ids, sampling, limits, drafter, options))
    return calls


def _constraint(service: Service, request: AnyRequest, lark: str | None) -> GrammarConstraint | None:
    if lark is not None:
        return service.grammars.for_lark(lark, "tools")
    schema = _schema(request)
    return None if schema is None else service.grammars.for_schema(schema, "response_format.json_schema.schema")


def _schema(request: AnyRequest) -> dict[str, Any] | None:
    """The JSON schema that the answer has to fit, if any."""
    wanted = request.response_format
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return ANY_OBJECT
    if wanted.json_schema is None:
        raise bad_field("response_format.json_schema", "response_format.json_schema: this field is required")
    return wanted.json_schema.schema_


def _answer_tokens(service: Service, request: AnyRequest) -> int:
    asked, most = request.answer_tokens, service.options.max_tokens
    if asked is None:
        return min(request.usual_answer, most)
    if asked > most:
        name = "max_tokens" if asked == request.max_tokens else "max_completion_tokens"
        raise bad_field(name, f"{name}: {asked} is more than this server allows ({most})")
    return asked


def _sampling(request: Generating, seed: int) -> Sampling:
    temperature = 1.0 if request.temperature is None else request.temperature
    return Sampling(
        temperature=0.0 if temperature < LEAST_TEMPERATURE else temperature,
        top_k=max(request.top_k or 0, 0),
        top_p=1.0 if request.top_p is None else request.top_p,
        min_p=request.min_p or 0.0,
        repetition_penalty=1.0 if request.repetition_penalty is None else request.repetition_penalty,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        logit_bias={int(token): bias for token, bias in (request.logit_bias or {}).items()},
        seed=seed % _SEEDS,
    )


def _drafter(service: Service, wanted: DraftingChoice, has_grammar: bool) -> Drafter | None:
    if not wanted.enabled:
        return None
    if wanted.drafter is None:
        return service.grammar_drafter if has_grammar else service.engine.drafter
    if wanted.drafter not in service.drafters:
        known = ", ".join(service.drafters)
        raise bad_field("speculation.drafter", f"speculation.drafter: unknown here; this server has {known}")
    return service.drafters[wanted.drafter]
