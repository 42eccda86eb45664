"""vLLM's own failures."""

from __future__ import annotations

from slipstream.findings import rule
from slipstream.parsing.log_patterns import LinePlace, Patterns

FAILURES = Patterns()
FAILURES.add(
    rule(
        "log-bfloat16",
        "blocks",
        "The GPU does not support bfloat16",
        "{gpu} has compute capability {capability}; bfloat16 needs 8.0.",
        "Start with --dtype half.",
    ),
    "Bfloat16 is only supported on GPUs with compute capability of at least 8.0",
    matches=r"Your (?P<gpu>.{1,80}?) GPU (?:has|does not have a) compute capability ?(?P<capability>[\d.]*)",
)
FAILURES.add(
    rule(
        "log-flash-attention",
        "note",
        "The GPU does not support FlashAttention 2",
        "FlashAttention 2 needs compute capability 8.0 (Ampere); on Volta and Turing (T4: 7.5) another attention "
        "kernel is used. It is slower, but this is not an error.",
        "Nothing to do. If a backend is set explicitly, use another one: --attention-backend TRITON_ATTN (older "
        "versions: VLLM_ATTENTION_BACKEND=XFORMERS).",
    ),
    "Cannot use FlashAttention",
    matches=r"Cannot use FlashAttention(?:-2)? backend for Volta and Turing GPUs",
)
FAILURES.add(
    rule(
        "log-vocab-vllm",
        "blocks",
        "vLLM: draft and target have vocabularies of different sizes",
        "The target has {target} tokens and the draft {draft}; vLLM needs equal sizes. Sizes may differ only in "
        "padding, with the same tokens.",
        'Use a draft model of that size, or let vLLM use the shared tokens: "use_heterogeneous_vocab": true with '
        '"method": "draft_model". Check the tokens: slipstream doctor --engine vllm --target T --draft D.',
    ),
    "Target and draft model should have the same vocabulary size",
    matches=r"Target model vocab_size=(?P<target>\d+).{0,10}Draft model vocab_size=(?P<draft>\d+)",
)
FAILURES.add(
    rule(
        "log-kv-memory",
        "blocks",
        "vLLM: not enough memory for the KV cache",
        "After loading the weights, there is too little GPU memory left for the KV cache of one full request.",
        "Lower --max-model-len, raise --gpu-memory-utilization (0.95), free the GPU of other processes, quantise the "
        "cache (--kv-cache-dtype fp8), or use a smaller model or draft.",
    ),
    "No available memory for the cache blocks",
    "To serve at least one request with the model",
    "which is larger than the available KV cache",
    "is larger than the maximum number of tokens that can be stored in KV cache",
)
FAILURES.add(
    rule(
        "log-memory-taken",
        "blocks",
        "vLLM: other processes use the GPU's memory",
        "Another process uses part of the GPU's memory, so the requested share is not free.",
        "Find these processes with nvidia-smi and stop them, or lower --gpu-memory-utilization.",
    ),
    "is less than desired GPU memory utilization",
    "Error in memory profiling. Initial free memory",
)
FAILURES.add(
    rule(
        "log-suffix-missing",
        "blocks",
        "vLLM: the package for suffix decoding is missing",
        "The method suffix needs the package arctic-inference, which is not installed.",
        "pip install arctic-inference==0.1.1 in vLLM's environment, or use the method ngram.",
    ),
    "Arctic Inference is required for suffix decoding",
    instead_of=("log-package-needed",),
)
FAILURES.add(
    rule(
        "log-vocab-vllm-old",
        "blocks",
        "vLLM: draft and target have vocabularies of different sizes (old engine)",
        "The config.json of draft and target name different vocab_size; this version of vLLM needs equal numbers, "
        "even if the rest is only padding.",
        "Use a draft with the target's vocab_size, pad the draft's embedding to it, or update vLLM. Check the tokens: "
        "slipstream doctor --engine vllm --target T --draft D.",
    ),
    "assert all(vocab_sizes[0] == vocab_size",
)
FAILURES.add(
    rule(
        "log-spec-no-model",
        "blocks",
        "vLLM: the speculative settings name neither a model nor a method",
        "The number of drafted tokens is given, but neither a draft model nor a method without one.",
        'Add "model": DRAFT to --speculative-config, or a method that needs none: "method": "ngram".',
    ),
    "num_speculative_tokens was provided but without speculative model",
)
FAILURES.add(
    rule(
        "log-spec-no-number",
        "blocks",
        "vLLM: the number of drafted tokens is missing",
        "A draft model is given without the number of tokens to draft, and the draft's config does not name one.",
        'Add "num_speculative_tokens": 4 to --speculative-config.',
    ),
    "num_speculative_tokens must be provided with speculative model",
    "but `num_speculative_tokens` was not provided",
)
FAILURES.add(
    rule(
        "log-spec-divisible",
        "blocks",
        "vLLM: the number of drafted tokens does not fit the draft",
        "The draft predicts {step} tokens at a time, and num_speculative_tokens is {number}, which is no multiple of "
        "it.",
        "Set num_speculative_tokens to a multiple of {step}.",
    ),
    "must be divisible by n_predict",
    matches=r"num_speculative_tokens:(?P<number>\d+) must be divisible by n_predict=(?P<step>\d+)",
)
FAILURES.add(
    rule(
        "log-spec-draft-parallel",
        "blocks",
        "vLLM: the draft can't run on this number of GPUs",
        "The draft was given its own tensor parallel size, and vLLM allows only 1 or the target's.",
        'Remove "draft_tensor_parallel_size" from --speculative-config, or set it to 1 or to --tensor-parallel-size.',
    ),
    "cannot be other value than 1 or target model tensor_parallel_size",
    "'draft_tensor_parallel_size' and 'tensor_parallel_size' must be the same",
)
FAILURES.add(
    rule(
        "log-spec-method",
        "blocks",
        "vLLM: this version does not support the speculative method here",
        "This version of vLLM does not support the speculative method with these settings: {reason}.",
        "Use another method (n-gram, EAGLE, MTP), or the other model runner: VLLM_USE_V2_MODEL_RUNNER=0 for methods "
        "that only the first one has. Update vLLM.",
    ),
    "Unsupported speculative method",
    "Unknown speculative decoding method",
    "support: ",
    "not supported yet on V1",
    "Speculative decoding is not supported",
    "peculative decoding with draft model",
    "is only supported with EAGLE/MTP",
    matches=r"(?:Error|Exception|Value error|error)[:,] (?P<reason>.{0,160}?(?:[Uu]nsupported speculative method|"
    r"Unknown speculative decoding method|support: [^\[\n]{0,60}(?:speculat|draft|EAGLE|"
    r"MTP)|[Ss]peculative decoding (?:with "
    r"draft models? )?is not supported|only supported with EAGLE|[Ss]peculative.{0,60}not supported yet on V1)(?:(?! "
    r"\[type).){0,120})",
)
FAILURES.add_general(
    rule(
        "log-spec-settings",
        "blocks",
        "vLLM refuses the speculative settings",
        "vLLM refuses the settings of speculation: {reason}.",
        "Change what the message names in --speculative-config. slipstream doctor --engine vllm --config FILE checks "
        "the whole command.",
    ),
    "Value error, ",
    "ValueError: ",
    "NotImplementedError: ",
    "AssertionError: ",
    matches=r"(?:Value error, |(?:Value|NotImplemented|Assertion)Error: )(?P<reason>(?:(?! "
    r"\[type).){0,160}?(?:[Ss]peculati|[Dd]raft|prompt_lookup|num_spec|n_predict|EAGLE|eagle|\bMTP\b|\bmtp\b|"
    r"[Mm]edusa|suffix_decoding)(?:(?! \[type).){0,160})",
    instead_of=("log-refused", "log-settings"),
)
FAILURES.add(
    rule(
        "log-draft-overrun",
        "blocks",
        "vLLM: a draft runs over the end of the context",
        "{drafted} tokens were to be written where {room} fit: a draft, or a request near the end of the context, is "
        "longer than the room that is left. Newer versions cut drafts there.",
        "Lower num_speculative_tokens, limit the answer (max_tokens) so that prompt, answer and draft fit "
        "--max-model-len, or update vLLM.",
    ),
    "could not broadcast input array from shape (",
    matches=r"from shape \((?P<drafted>\d+),\) into shape \((?P<room>\d+),\)",
    place=LinePlace(frames=("vllm",)),
)
FAILURES.add(
    rule(
        "log-graph-shapes",
        "blocks",
        "vLLM: no CUDA graph size fits these settings",
        "vLLM finds no batch size for CUDA graphs that fits the number of drafted tokens, the graph sizes and the "
        "tensor parallel size. Versions around 0.11 counted sequence parallelism although it was off.",
        "Update vLLM. Or choose num_speculative_tokens so that it plus 1 is a multiple of the tensor parallel size (3 "
        "with 4 GPUs), raise max_cudagraph_capture_size, or start with --enforce-eager.",
    ),
    "Can't determine cudagraph shapes",
    "No valid cudagraph sizes after rounding",
)
FAILURES.add(
    rule(
        "log-batched-tokens",
        "blocks",
        "vLLM: max_num_batched_tokens is too small",
        "The number of tokens per step is smaller than the context or than what speculation needs: {reason}.",
        "Raise --max-num-batched-tokens (at least --max-model-len without chunked prefill), or lower --max-model-len, "
        "--max-num-seqs or the number of drafted tokens.",
    ),
    "is smaller than max_model_len",
    "does not allow any tokens to be scheduled",
    "does not have enough slots to schedule a token",
    "must be greater than or equal to max_num_seqs",
    matches=r"(?P<reason>max_num_batched_tokens \(\d+\) (?:is smaller than max_model_len|must be greater).{0,40}|"
    r"max_num_scheduled_tokens is set to.{0,60}|not have enough slots.{0,60})",
)
FAILURES.add(
    rule(
        "log-worker-hangs",
        "slows",
        "vLLM: a worker does not answer",
        "The engine waits for a worker process: it has not answered for a minute or more. It may still compile or "
        "load; if the line repeats, it hangs, often in the communication between GPUs. The line is a sign of the "
        "hang, not its cause.",
        "Look at what the workers do (py-spy dump --pid PID, nvidia-smi). Try NCCL_DEBUG=INFO, NCCL_P2P_DISABLE=1, "
        "--disable-custom-all-reduce, --enforce-eager, and a start without speculation.",
    ),
    "No available shared memory broadcast block found",
    "No available block found in 60 second",
)
FAILURES.add(
    rule(
        "log-preempted",
        "slows",
        "vLLM: requests are interrupted because the KV cache is full",
        "Requests do not fit the KV cache together, so vLLM interrupts some and computes them again later.",
        "Lower --max-num-seqs or --max-model-len, raise --gpu-memory-utilization, quantise the cache "
        "(--kv-cache-dtype fp8), or use a smaller draft.",
    ),
    "is preempted by ",
    matches=r"is preempted by .{0,80}not enough KV cache",
)
FAILURES.add(
    rule(
        "log-prompt-dropped",
        "slows",
        "vLLM: a prompt was too long and got no answer",
        "A prompt of {tokens} tokens is longer than the limit of {limit}, so its request ended without an answer. The "
        "limit is the number of tokens per step where prompts are not split (chunked prefill is off), else the "
        "context.",
        "Raise --max-num-batched-tokens to the longest prompt, switch on --enable-chunked-prefill, or raise "
        "--max-model-len.",
    ),
    "is too long and exceeds limit of",
    "is too long and exceeds the capacity of",
    matches=r"Input prompt \((?P<tokens>\d+) tokens\) is too long and exceeds (?:limit of|the capacity of \w+) "
    r"?(?P<limit>\d*)",
)
