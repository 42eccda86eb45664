"""vLLM's log: the stages of a start. Its failures are in failures.toml."""

from __future__ import annotations

from pathlib import Path

from slipstream.parsing.failure_files import read_failures
from slipstream.parsing.log_patterns import EngineLog, Stage, StartLog

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
    library=("Initializing an LLM engine", "Initializing a V1 LLM engine"),
    library_ready=("GPU blocks:", "cuda blocks:", "Graph capturing finished", "GPU KV cache size:"),
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
            ("Initializing a V1 LLM engine", "Initializing an LLM engine", "core engine proc(s) to start"),
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

LOG = EngineLog(START, read_failures(Path(__file__).with_name("failures.toml")))
