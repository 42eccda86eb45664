"""vLLM's log: the stages of a start, and its own failures."""

from __future__ import annotations

from slipstream.findings import rule
from slipstream.parsing.log_patterns import EngineLog, Patterns, Stage, StartLog

_DEBUG = "start with VLLM_LOGGING_LEVEL=DEBUG to see what it waits for"
EAGER = "start with --enforce-eager: no torch.compile, no CUDA graphs"
_TURING = (
    "on GPUs of compute capability 7.5 (T4) also --dtype half --max-model-len 2048 --max-num-seqs 8; versions up to "
    "0.10 can run the older engine with VLLM_USE_V1=0"
)
_NETWORK = "with several GPUs, NCCL_DEBUG=INFO shows whether they can communicate"
START = StartLog(
    marks=(
        *("vLLM API server version", "Initializing a V1 LLM engine", "Initializing an LLM engine", "EngineCore"),
        *("vllm", "vLLM", "SpecDecoding metrics"),
    ),
    begins=("vLLM API server version",),
    ready=("Application startup complete", "init engine (profile, create kv cache"),
    works=(('"POST /', '" 200'), ("Processed prompts: 100%",)),
    verbose="VLLM_LOGGING_LEVEL=DEBUG",
    stages=(
        Stage(
            "starting the server's process",
            ("vLLM API server version",),
            "The model's config was not read yet; vLLM may be waiting for the hub.",
            ("give a local path or set HF_HUB_OFFLINE=1", _DEBUG),
        ),
        Stage(
            "reading the model's config",
            ("Resolved architecture",),
            "The engine's process has not started.",
            (_DEBUG, _NETWORK),
        ),
        Stage(
            "starting the engine's process",
            ("Initializing a V1 LLM engine", "Initializing an LLM engine"),
            "It waits for the GPU or for its other processes.",
            ("check nvidia-smi", _NETWORK, _TURING, _DEBUG),
        ),
        Stage(
            "waiting for the GPUs of the other machines",
            ("Waiting for creating a placement group",),
            "The other machines have not joined with enough GPUs.",
            ("check `ray status` on this machine", _NETWORK, _DEBUG),
        ),
        Stage(
            "loading the weights",
            ("Starting to load model", "Loading safetensors checkpoint shards", "Loading pt checkpoint shards"),
            "Weights are being read. From a network disk, or with too little memory, this takes very long.",
            ("copy them to a local disk", _DEBUG),
        ),
        Stage(
            "loading the draft",
            ("Loading drafter model",),
            "The target is loaded, the draft is not.",
            ("check the draft alone: slipstream doctor --draft MODEL", _DEBUG),
        ),
        Stage(
            "measuring memory",
            ("Loading weights took", "Model loading took"),
            "A run with the largest batch measures the free memory, and kernels are compiled.",
            (EAGER, "lower --max-num-batched-tokens", _TURING, _DEBUG),
        ),
        Stage(
            "compiling with torch.compile",
            (
                *("Warming up model for the compilation", "for vLLM's torch.compile", "Dynamo bytecode transform time"),
                *("Compiling a graph", "torch.compile t"),
            ),
            "Compiling takes minutes on the first start with few CPU cores; the result is cached.",
            ("wait until it finishes once", EAGER, _TURING, _DEBUG),
        ),
        Stage(
            "creating the KV cache",
            ("Memory profiling takes", "Available KV cache memory", "KV cache size", "# GPU blocks:"),
            "CUDA graphs are captured next.",
            (EAGER, _TURING, _DEBUG),
        ),
        Stage(
            "capturing CUDA graphs",
            ("Capturing CUDA graph", "Capturing the model for CUDA graphs"),
            "Graphs are recorded for many batch sizes; with speculation there are more, and each takes memory.",
            (EAGER, "record fewer sizes with --max-num-seqs 8", _TURING, _DEBUG),
        ),
        Stage(
            "starting the HTTP server",
            ("Graph capturing finished", "init engine (profile", "Starting vLLM server"),
            "Only the HTTP server was missing.",
            ("check that the port is free", _DEBUG),
        ),
    ),
)

_FAILURES = Patterns()
_FAILURES.add(
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
_FAILURES.add(
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
_FAILURES.add(
    rule(
        "log-flash-attention-forced",
        "blocks",
        "FlashAttention is requested on a GPU below compute capability 8.0",
        "FlashAttention 2 was requested, or is needed by the selected backend, on a GPU below compute capability 8.0.",
        "Use another backend: --attention-backend TRITON_ATTN (older versions: VLLM_ATTENTION_BACKEND=XFORMERS), and "
        "--enforce-eager --dtype half.",
    ),
    "FlashAttention only supports Ampere GPUs or newer",
)
_FAILURES.add(
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
_FAILURES.add(
    rule(
        "log-kv-memory",
        "blocks",
        "vLLM: not enough memory for the KV cache",
        "After loading the weights, there is too little GPU memory left for the KV cache of one full request.",
        "Lower --max-model-len, raise --gpu-memory-utilization (0.95), or use a smaller model or draft.",
    ),
    "No available memory for the cache blocks",
    "which is larger than the available KV cache",
    "is larger than the maximum number of tokens that can be stored in KV cache",
)
_FAILURES.add(
    rule(
        "log-memory-taken",
        "blocks",
        "vLLM: other processes use the GPU's memory",
        "Another process uses part of the GPU's memory, so the requested share is not free.",
        "Find these processes with nvidia-smi and stop them, or lower --gpu-memory-utilization.",
    ),
    "is less than desired GPU memory utilization",
)
_FAILURES.add(
    rule(
        "log-suffix-missing",
        "blocks",
        "vLLM: the package for suffix decoding is missing",
        "The method suffix needs the package arctic-inference, which is not installed.",
        "pip install arctic-inference==0.1.1 in vLLM's environment, or use the method ngram.",
    ),
    "Arctic Inference is required for suffix decoding",
)

LOG = EngineLog(START, tuple(_FAILURES))
