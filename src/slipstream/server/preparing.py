"""From a checked request to the calls of the engine: prompt ids, sampling, limits, drafter."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.core.sampling import LEAST_TEMPERATURE, Sampling
from slipstream.core.stream import Drafter, Limits, RequestOptions
from slipstream.errors import SlipstreamError
from slipstream.server.answers import AnswerFormat, ChatFormat, CompletionFormat
from slipstream.server.refusals import Refusal, bad_field, refusal_for
from slipstream.server.requests import ChatRequest, CompletionRequest, Generating, Speculation
from slipstream.server.scheduler import AnswerCall
from slipstream.server.service import Service
from slipstream.server.settings import BOUNDS

AnyRequest = ChatRequest | CompletionRequest
_SEEDS = 1 << 64
_DEFAULT_ANSWER = 1024  # tokens, where a chat does not say: the cache has to hold a place for as many


@dataclass(frozen=True, slots=True)
class Prepared:
    """The answers that one request asks for."""

    calls: Sequence[AnswerCall]
    format: AnswerFormat
    num_prompts: int = 1


def prepare_chat(service: Service, request: ChatRequest) -> Prepared:
    """Runs outside the event loop: long prompts take a while. Raises Refusal."""
    _check_model(service, request)
    messages = [{"role": message.role, "content": message.text} for message in request.messages]
    try:
        prompt = service.tokenizer.chat_ids(messages)
    except SlipstreamError as error:
        raise Refusal(400, str(error), param="messages") from None
    chat_format = ChatFormat(service.tokenizer.vocabulary.spelled_bytes, request.num_logprobs is not None)
    return Prepared(_calls(service, request, [prompt]), chat_format)


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
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt[0], int):
        return [list(prompt)]
    return list(prompt)


def _check_model(service: Service, request: Generating) -> None:
    """There is one model; a request may name it or not."""
    if request.model not in (None, service.model):
        message = f"model: {request.model!r} is not served here; the model is {service.model!r}"
        raise Refusal(404, message, param="model", code="model_not_found")


def _calls(service: Service, request: AnyRequest, prompts: Sequence[list[int]]) -> list[AnswerCall]:
    limits = Limits(_answer_tokens(service, request), request.stop_strings, ignore_eos=bool(request.ignore_eos))
    drafter = _drafter(service, request.drafting)
    options = RequestOptions(max_draft=request.drafting.max_draft, num_logprobs=request.num_logprobs)
    seed = secrets.randbits(63) if request.seed is None else request.seed
    try:
        samplings = [_sampling(request, seed + i) for i in range(request.n or 1)]
    except SlipstreamError as error:
        raise refusal_for(error) from None
    return [AnswerCall(ids, sampling, limits, drafter, options) for ids in prompts for sampling in samplings]


def _answer_tokens(service: Service, request: AnyRequest) -> int:
    asked, most = request.answer_tokens, service.options.max_tokens
    if asked is None:
        return min(_DEFAULT_ANSWER, most)
    if asked > most:
        raise bad_field("max_tokens", f"max_tokens: {asked} is more than this server allows ({most})")
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


def _drafter(service: Service, wanted: Speculation) -> Drafter | None:
    if not wanted.enabled:
        return None
    if wanted.drafter is None:
        return service.engine.drafter
    if wanted.drafter not in service.drafters:
        known = ", ".join(service.drafters)
        raise bad_field("speculation.drafter", f"speculation.drafter: unknown here; this server has {known}")
    return service.drafters[wanted.drafter]
