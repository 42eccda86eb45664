"""Ollama's log: its own failures, and those of the llama.cpp in it."""

from __future__ import annotations

from slipstream.engines.llama_server.logs import FAILURES as LLAMA_CPP_FAILURES
from slipstream.findings import rule
from slipstream.parsing.log_patterns import EngineLog, Patterns, Stage, StartLog

START = StartLog(
    "/api/version",
    (Stage("listening", ("Listening on",)),),
    marks=("ollama", "source=sched.go", "source=server.go", "source=runner.go", "source=routes.go", "[GIN]"),
    begins=('msg="starting llama server"', 'msg="starting runner"', 'msg="starting go runner"'),
    ready=('msg="Listening on', "llama runner started in"),
    works=(("| 200 |", "/api/chat"), ("| 200 |", "/api/generate"), ("| 200 |", "/v1/")),
    verbose="OLLAMA_DEBUG=1",
)

_FAILURES = Patterns()
_FAILURES.add(
    rule(
        "log-runner-ended",
        "blocks",
        "Ollama: the process that runs the model ended",
        "The process that runs the model ended: {reason}. The lines before it show the cause, most often too little "
        "memory.",
        "Look at `journalctl -u ollama` above this line. Lower num_ctx or num_gpu, use a smaller model, or update "
        "Ollama if the model is newer than Ollama.",
    ),
    "llama runner process has terminated",
    "llama runner process no longer running",
    matches=r"llama runner process (?:has terminated|no longer running):? ?(?P<reason>.{0,100})",
)
_FAILURES.add(
    rule(
        "log-one-stream",
        "note",
        "Ollama answers one request at a time with this architecture",
        "Ollama ignores OLLAMA_NUM_PARALLEL for models of the architecture {name}: requests wait for each other.",
        "Expect no more throughput from several requests at the same time, or run the model with llama-server.",
    ),
    "model architecture does not currently support parallel requests",
    matches=r'architecture="?(?P<name>[\w.-]{1,60})',
)

LOG = EngineLog(START, (*LLAMA_CPP_FAILURES, *_FAILURES))
