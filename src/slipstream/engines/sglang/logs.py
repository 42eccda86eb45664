"""SGLang's log: the stages of a start. Its failures are in failures.toml."""

from __future__ import annotations

from pathlib import Path

from slipstream.parsing.failure_files import read_failures
from slipstream.parsing.log_patterns import EngineLog, Stage, StartLog

_LEVEL = "start with --log-level debug to see what it waits for"
_NETWORK = "with several GPUs, NCCL_DEBUG=INFO shows whether they can communicate"
START = StartLog(
    marks=("server_args=ServerArgs", "sglang", "sgl_kernel", "Decode batch", "Prefill batch", "Load weight begin"),
    begins=("server_args=ServerArgs",),
    ready=("The server is fired up and ready to roll",),
    works=(('"POST /', '" 200'), ("Decode batch",)),
    verbose="--log-level debug",
    stages=(
        Stage("starting", ("server_args=",), "The model was not loaded yet.", (_LEVEL, _NETWORK)),
        Stage(
            "connecting the GPUs",
            ("Init torch distributed begin",),
            "The processes wait for each other.",
            (_NETWORK, _LEVEL),
        ),
        Stage(
            "loading the weights",
            ("Load weight begin",),
            "Weights are being read. From a network disk, or with too little memory, this takes very long.",
            ("copy them to a local disk", _LEVEL),
        ),
        Stage(
            "creating the KV cache",
            ("Load weight end", "KV Cache is allocated"),
            "The memory pool comes next.",
            ("lower --mem-fraction-static", _LEVEL),
        ),
        Stage(
            "preparing CUDA graphs",
            ("Memory pool end",),
            "CUDA graphs are captured next.",
            ("start with --cuda-graph-backend-decode disabled", _LEVEL),
        ),
        Stage(
            "capturing CUDA graphs",
            ("Capture cuda graph begin",),
            "Graphs are recorded for many batch sizes.",
            ("start with --cuda-graph-backend-decode disabled", "or fewer sizes: --cuda-graph-max-bs-decode 8", _LEVEL),
        ),
        Stage("starting the HTTP server", ("Capture cuda graph end", "Application startup complete")),
        Stage("listening", ("The server is fired up and ready to roll",)),
    ),
)
LOG = EngineLog(START, read_failures(Path(__file__).with_name("failures.toml")))
