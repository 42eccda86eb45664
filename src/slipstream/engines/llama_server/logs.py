"""llama.cpp's log: the stages of a start. Its failures are in failures/."""

from __future__ import annotations

from pathlib import Path

from slipstream.parsing.failure_files import read_failures
from slipstream.parsing.log_patterns import EngineLog, Stage, StartLog

_VERBOSE = "start with --verbose to see what it waits for"
START = StartLog(
    marks=(
        *("llama_model", "llama_load", "llama_init", "llama_new_context", "llama_context", "llama_perf", "llama_print"),
        *("llama_kv", "llama_decode", "llama_cpp", "llama-cpp-python", "llama_server", "llm_load", "ggml_", "GGML_"),
        *("common_speculative", "lmstudio", "LM STUDIO", "mlx_engine", "koboldcpp", "KoboldCpp", "KoboldAI"),
        *("srv  ", "slot print_timing", "slot update_slots", "slot launch_slot"),
        *("main: loading model", "Load Text Model OK"),
    ),
    begins=("main: loading model", "main: build = ", "system_info: n_threads"),
    # "HTTP server is listening" alone comes before the model is loaded.
    ready=(
        *("main: model loaded", "llama_server: model loaded", "server is listening on", "listening on http"),
        "Application startup complete",
    ),
    idle=("all slots are idle", "slot      release"),
    works=(
        *(("eval time =",), ("decoded ", "speed:"), ("llama_print_timings:", "total time")),
        ("generate: n_ctx =",),
    ),
    verbose="--verbose",
    stages=(
        Stage(
            "loading the weights",
            ("loading model tensors",),
            "The file is being read.",
            ("copy it to a local disk", "try --load-mode none", _VERBOSE),
        ),
        Stage(
            "loading the draft",
            ("loading draft model",),
            "The target is loaded, the draft is not.",
            ("start without -md to see whether the draft is the cause", _VERBOSE),
        ),
        Stage(
            "loading the model", ("loading model",), "The file is being read.", ("copy it to a local disk", _VERBOSE)
        ),
        Stage(
            "creating the context",
            ("initializing, n_slots", "new slot"),
            "The KV cache is being allocated.",
            ("lower -c or --parallel", _VERBOSE),
        ),
        Stage("warming up", ("warming up",), "The first forward pass hangs.", ("try --no-warmup", _VERBOSE)),
        Stage("listening", ("server is listening", "listening on")),
    ),
)

FAILURES = read_failures(Path(__file__).with_name("failures"))
LOG = EngineLog(START, FAILURES)
