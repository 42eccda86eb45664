"""transformers' log: failures of assisted generation. It has no server, so no stages of a start."""

from __future__ import annotations

from slipstream.findings import rule
from slipstream.parsing.log_patterns import EngineLog, Patterns, StartLog

_FAILURES = Patterns()
_FAILURES.add(
    rule(
        "log-assistant-tokenizers",
        "blocks",
        "transformers: draft and target have different tokenizers",
        "transformers takes the two models for different vocabularies because vocab_size in their config.json "
        "differs; the tokens may still be the same (padding).",
        "Pass both tokenizers to generate(): tokenizer=…, assistant_tokenizer=…; or use a draft with the same "
        "vocab_size. Check: slipstream doctor --target T --draft D.",
    ),
    "main and assistant models have different tokenizers",
    "main and the assistant models have different tokenizers",
    "Make sure the main and assistant model use the same tokenizer",
    "must share the same tokenizer",
)
_FAILURES.add(
    rule(
        "log-assistant-same",
        "blocks",
        "transformers: assistant_tokenizer is not needed here",
        "Draft and target have the same vocabulary size, and generate() then refuses assistant_tokenizer.",
        "Leave out assistant_tokenizer (and tokenizer) in the call of generate().",
    ),
    "`assistant_tokenizer` is not required when the main and assistant models use the same tokenizer",
)
_FAILURES.add(
    rule(
        "log-assistant-translator",
        "blocks",
        "transformers: a fault in drafting with another vocabulary",
        "This version of transformers fails when draft and target have different vocabularies and the draft's is part "
        "of the target's.",
        "Update transformers, or use a draft with the target's vocabulary: slipstream pairs --target TARGET. "
        "Slipstream's drafter `translate` drafts with another vocabulary.",
    ),
    "'AssistantToTargetTranslator' object has no attribute",
    instead_of=("log-attribute-missing",),
)
_FAILURES.add(
    rule(
        "log-assistant-batch",
        "blocks",
        "transformers: assisted generation takes one prompt at a time",
        "assistant_model and prompt_lookup_num_tokens work with one prompt and one answer at a time only.",
        "Call generate() for each prompt, with num_return_sequences=1; or use Slipstream, vLLM or SGLang for several "
        "at a time.",
    ),
    "assisted generate is only supported for batch_size = 1",
    "num_return_sequences has to be 1 when doing assisted generate",
    "assistant_model is not supported for continuous batching",
)
_FAILURES.add(
    rule(
        "log-assistant-stateful",
        "blocks",
        "transformers: the model can't go back to an earlier token",
        "The model keeps a running state (Mamba, RWKV, linear attention) that can't be set back after a rejected "
        "draft.",
        "Use a model with an ordinary KV cache as target and as draft.",
    ),
    "is not supported with stateful models",
)
_FAILURES.add(
    rule(
        "log-assistant-cache",
        "blocks",
        "transformers: this kind of cache can't be used with a draft",
        "The cache can't be cut back after a rejected draft: it is static or quantised, or switched off.",
        "Leave cache_implementation out (the default is dynamic), and set use_cache=True.",
    ),
    "assisted generate is not supported with Static cache",
    "assisted generate requires `use_cache=True`",
    "assisted decoding requires a cache",
    "assisted generate is not supported with",
)
_FAILURES.add_general(
    rule(
        "log-assistant-refused",
        "blocks",
        "transformers refuses assisted generation",
        "transformers refuses assisted generation with this pair or these settings: {reason}.",
        "Change what the message names. Draft and target must be of the same kind (both decoders, or both "
        "encoder-decoders).",
    ),
    "ssisted",
    "ssistant",
    "candidate generator",
    matches=r"(?:Error|Exception): (?P<reason>.{0,160}(?:[Aa]ssisted|[Aa]ssistant|candidate generator).{0,160})",
    instead_of=("log-refused",),
)
_FAILURES.add(
    rule(
        "log-bitsandbytes-offload",
        "blocks",
        "transformers: the quantised model does not fit the GPU",
        "Parts of the quantised model would go to the CPU or the disk because the GPU's memory is too small, and "
        "bitsandbytes does not allow that by itself.",
        "Use a smaller model, free the GPU, or allow it: llm_int8_enable_fp32_cpu_offload=True with a device_map.",
    ),
    "Some modules are dispatched on the CPU or the disk",
)

START = StartLog(marks=("transformers/generation", "transformers\\generation", "assistant_model", "AssistantToTarget"))
LOG = EngineLog(START, tuple(_FAILURES))
