"""Ollama's log: its own failures, and those of the llama.cpp in it."""

from __future__ import annotations

from pathlib import Path

from slipstream.engines.llama_server.logs import FAILURES as LLAMA_CPP_FAILURES
from slipstream.parsing.failure_files import read_failures
from slipstream.parsing.log_patterns import EngineLog, Stage, StartLog

START = StartLog(
    "/api/version",
    (Stage("listening", ("Listening on",)),),
    marks=("ollama", "source=sched.go", "source=server.go", "source=runner.go", "source=routes.go", "[GIN]"),
    begins=('msg="starting llama server"', 'msg="starting runner"', 'msg="starting go runner"'),
    ready=('msg="Listening on', "llama runner started in"),
    works=(("| 200 |", "/api/chat"), ("| 200 |", "/api/generate"), ("| 200 |", "POST", "/v1/")),
    verbose="OLLAMA_DEBUG=1",
)

LOG = EngineLog(START, (*LLAMA_CPP_FAILURES, *read_failures(Path(__file__).with_name("failures.toml"))))
