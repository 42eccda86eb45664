"""The part of the OpenAI-compatible API that engines share: requests and events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipstream.core.generator import Conversation
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.engines.engine_types import AnswerPiece, Request, TokenCandidate


def openai_request(
    model: str, prompt: str | Conversation, sampling: Sampling, limits: Limits, extras: Mapping[str, Any], top: int = 0
) -> Request:
    """A streamed completion of a string, or a chat completion of messages. `extras` are the engine's own fields."""
    body: dict[str, Any] = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": limits.max_tokens,
        **sampling_fields(sampling),
        **extras,
    }
    if limits.stop:
        body["stop"] = list(limits.stop)
    if isinstance(prompt, str):
        return Request("/v1/completions", body | {"prompt": prompt} | ({"logprobs": top} if top else {}))
    chosen = {"logprobs": True, "top_logprobs": top} if top else {}
    return Request("/v1/chat/completions", body | {"messages": [dict(m) for m in prompt]} | chosen)


def sampling_fields(sampling: Sampling) -> dict[str, Any]:
    """All sampling settings that have an OpenAI field are sent, because engines and models have their own defaults.

    Top-k, min-p and the repetition penalty are the engines' own additions: see their `request`.
    """
    fields: dict[str, Any] = {
        "temperature": sampling.temperature,
        "seed": sampling.seed,
        "top_p": sampling.top_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
    }
    if sampling.logit_bias:
        fields["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    return fields


def read_openai_event(event: Mapping[str, Any]) -> AnswerPiece:
    """Text, end and usage. Engines add their own fields: see their `read_event`."""
    choice: Mapping[str, Any] = next(iter(event.get("choices") or ()), {})
    usage = event.get("usage") or {}
    text = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
    details = usage.get("prompt_tokens_details") or {}
    return AnswerPiece(
        text=text,
        tokens=tuple(choice.get("token_ids") or ()),
        finish_reason=choice.get("finish_reason"),
        num_prompt_tokens=usage.get("prompt_tokens"),
        num_reused=details.get("cached_tokens"),
        num_tokens=usage.get("completion_tokens"),
        candidates=_candidates(choice.get("logprobs") or {}),
    )


def _candidates(logprobs: Mapping[str, Any]) -> tuple[tuple[TokenCandidate, ...], ...]:
    """Of a chat (`content`, a list of entries) or of a completion (`top_logprobs`, a dictionary a token)."""
    entries = [
        [(top.get("token", ""), top.get("logprob", 0.0)) for top in entry.get("top_logprobs") or ()]
        for entry in logprobs.get("content") or ()
    ] or [list((tops or {}).items()) for tops in logprobs.get("top_logprobs") or ()]
    ranked = (sorted(entry, key=lambda pair: -pair[1]) for entry in entries)
    return tuple(tuple(TokenCandidate(token, logprob) for token, logprob in entry) for entry in ranked)
