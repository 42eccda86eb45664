"""Starts that never finish: the last stage in the log, and what to try."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from slipstream.diagnosis.log_scan import Hit, first_hit, line_at
from slipstream.findings import Finding, rule

UNFINISHED = rule(
    "log-start-unfinished",
    "blocks",
    "The start did not finish, and there is no error",
    "{engine} did not report that it is ready. The last stage it reached: {stage}. {meaning}",
    "{fix}",
)


@dataclass(frozen=True, slots=True)
class _Stage:
    """A stage: the lines that identify it, what happens in it, and what to try if nothing follows."""

    name: str
    pieces: tuple[str, ...]
    meaning: str
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Start:
    engine: str
    marks: tuple[str, ...]  # any of them identifies the log as this engine's
    ready: tuple[str, ...]
    stages: tuple[_Stage, ...]


_DEBUG = "start with VLLM_LOGGING_LEVEL=DEBUG to see what it waits for"
_EAGER = "start with --enforce-eager: no torch.compile, no CUDA graphs"
_TURING = (
    "on GPUs of compute capability 7.5 (T4) also --dtype half --max-model-len 2048 --max-num-seqs 8; versions up to "
    "0.10 can run the older engine with VLLM_USE_V1=0"
)
_NETWORK = "with several GPUs, NCCL_DEBUG=INFO shows whether they can communicate"
_WEIGHTS = "Weights are being read. From a network disk, or with too little memory, this takes very long."

_VLLM = _Start(
    "vllm",
    ("vLLM API server version", "Initializing a V1 LLM engine", "Initializing an LLM engine", "EngineCore", "vllm"),
    ("Application startup complete",),
    (
        _Stage(
            "the server's start",
            ("vLLM API server version",),
            "The model's config was not read yet; vLLM may be waiting for the hub.",
            ("give a local path or set HF_HUB_OFFLINE=1", _DEBUG),
        ),
        _Stage(
            "reading the model's config",
            ("Resolved architecture",),
            "The engine's process has not started.",
            (_DEBUG, _NETWORK),
        ),
        _Stage(
            "the start of the engine's process",
            ("Initializing a V1 LLM engine", "Initializing an LLM engine"),
            "It waits for the GPU or for its other processes.",
            ("check nvidia-smi", _NETWORK, _TURING, _DEBUG),
        ),
        _Stage(
            "loading weights",
            ("Starting to load model", "Loading safetensors checkpoint shards", "Loading pt checkpoint shards"),
            _WEIGHTS,
            ("copy them to a local disk", _DEBUG),
        ),
        _Stage(
            "loading the draft",
            ("Loading drafter model",),
            "The target is loaded, the draft is not.",
            ("check the draft alone: slipstream doctor --draft MODEL", _DEBUG),
        ),
        _Stage(
            "weights loaded, memory profiling begun",
            ("Loading weights took", "Model loading took"),
            "A run with the largest batch measures the free memory, and kernels are compiled.",
            (_EAGER, "lower --max-num-batched-tokens", _TURING, _DEBUG),
        ),
        _Stage(
            "torch.compile",
            ("for vLLM's torch.compile", "Dynamo bytecode transform time", "Compiling a graph", "torch.compile t"),
            "Compiling takes minutes on the first start with few CPU cores; the result is cached.",
            ("wait until it finishes once", _EAGER, _TURING, _DEBUG),
        ),
        _Stage(
            "memory profiled, creating the KV cache",
            ("Memory profiling takes", "Available KV cache memory", "GPU KV cache size", "# GPU blocks:"),
            "CUDA graphs are captured next.",
            (_EAGER, _TURING, _DEBUG),
        ),
        _Stage(
            "CUDA graph capture",
            ("Capturing CUDA graph", "Capturing the model for CUDA graphs"),
            "Graphs are recorded for many batch sizes; with speculation there are more, and each takes memory.",
            (_EAGER, "record fewer sizes with --max-num-seqs 8", _TURING, _DEBUG),
        ),
        _Stage(
            "the engine was ready",
            ("Graph capturing finished", "init engine (profile"),
            "Only the HTTP server was missing.",
            ("check that the port is free", _DEBUG),
        ),
    ),
)
_VERBOSE = "start with --verbose to see what it waits for"
_LLAMA = _Start(
    "llama-server",
    ("llama_model_loader:", "srv    load_model", "srv  load_model", "main: loading model"),
    ("server is listening", "listening on", "all slots are idle", "eval time"),
    (
        _Stage(
            "loading the model", ("loading model",), "The file is being read.", ("copy it to a local disk", _VERBOSE)
        ),
        _Stage(
            "loading weights",
            ("loading model tensors",),
            "The file is being read.",
            ("copy it to a local disk", "try --load-mode none", _VERBOSE),
        ),
        _Stage(
            "the warm-up run", ("warming up the model",), "The first forward pass hangs.", ("try --no-warmup", _VERBOSE)
        ),
        _Stage(
            "loading the draft",
            ("loading draft model",),
            "The target is loaded, the draft is not.",
            ("start without -md to see whether the draft is the cause", _VERBOSE),
        ),
    ),
)
_LEVEL = "start with --log-level debug to see what it waits for"
_SGLANG = _Start(
    "sglang",
    ("server_args=ServerArgs", "sglang"),
    ("The server is fired up and ready to roll",),
    (
        _Stage("the server's start", ("server_args=",), "The model was not loaded yet.", (_LEVEL, _NETWORK)),
        _Stage("loading weights", ("Load weight begin",), _WEIGHTS, ("copy them to a local disk", _LEVEL)),
        _Stage(
            "weights loaded",
            ("Load weight end",),
            "The memory pool comes next.",
            ("lower --mem-fraction-static", _LEVEL),
        ),
        _Stage(
            "memory pool created",
            ("Memory pool end",),
            "CUDA graphs are captured next.",
            ("start with --cuda-graph-backend-decode disabled", _LEVEL),
        ),
        _Stage(
            "CUDA graph capture",
            ("Capture cuda graph begin",),
            "Graphs are recorded for many batch sizes.",
            ("start with --cuda-graph-backend-decode disabled", "or fewer sizes: --cuda-graph-max-bs-decode 8", _LEVEL),
        ),
    ),
)
STARTS = (_VLLM, _SGLANG, _LLAMA)
_ENDED = ("Traceback (most recent call last)", "Error:", "error:", "ERROR", "exiting due to", "Killed", "Shutting down")


def unfinished_start(text: str, engine: str | None) -> Iterator[tuple[Hit, Callable[[str], Finding]]]:
    """The last stage of a start that neither finished nor failed. Nothing if the log is not from a known engine."""
    for start in STARTS:
        if engine not in (None, start.engine) or not any(mark in text for mark in start.marks):
            continue
        if any(piece in text for piece in (*start.ready, *_ENDED)):
            return
        reached = [
            (at, piece, stage) for stage in start.stages for piece in stage.pieces if (at := text.rfind(piece)) >= 0
        ]
        if reached:
            at, _, stage = max(reached, key=lambda found: (found[0], len(found[1])))
            yield Hit(at, line_at(text, at), {}), _maker(start, stage, text)
            return


def _maker(start: _Start, stage: _Stage, text: str) -> Callable[[str], Finding]:
    steps, meaning = list(stage.steps), stage.meaning
    if _EAGER in steps and first_hit(text, ("enforce_eager=True", "--enforce-eager"), None):
        steps.remove(_EAGER)
        meaning += " Eager mode is already on, so compiling and CUDA graphs are not the cause."
    if "method='ngram'" in text or '"method": "ngram"' in text:
        meaning += " N-gram drafting loads no weights: start once without it to see whether it causes the hang."
    fix = "Try, in this order: " + "; ".join(steps) + "."
    return lambda evidence: UNFINISHED.finding(
        evidence, engine=start.engine, stage=stage.name, meaning=meaning, fix=fix
    )
