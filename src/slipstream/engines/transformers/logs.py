"""transformers' log: failures of assisted generation. It has no server, so no stages of a start."""

from __future__ import annotations

from pathlib import Path

from slipstream.parsing.failure_files import read_failures
from slipstream.parsing.log_patterns import EngineLog, StartLog

START = StartLog(marks=("transformers/generation", "transformers\\generation", "assistant_model", "AssistantToTarget"))
LOG = EngineLog(START, read_failures(Path(__file__).with_name("failures.toml")))
