"""TabbyAPI's log: the stages of a start, and its own failures."""

from __future__ import annotations

from pathlib import Path

from slipstream.parsing.failure_files import read_failures
from slipstream.parsing.log_patterns import EngineLog, Stage, StartLog

START = StartLog(
    stages=(
        Stage("loading the draft", ("Loading draft modules", "Using draft model:")),
        Stage("loading the model", ("Loading model:", "Loading model modules")),
        Stage("listening", ("Uvicorn running on", "Developer documentation")),
    ),
    marks=("tabbyAPI", "TabbyAPI", "tabbyapi", "exllama", "Exllama", "ExLlama"),
    begins=("ExllamaV2 version:", "exllamav3 version:"),
    ready=("Application startup complete", "Uvicorn running on", "Model successfully loaded"),
    works=(('"POST /', '" 200'), ("Metrics (ID:",)),
)

LOG = EngineLog(START, read_failures(Path(__file__).with_name("failures.toml")))
