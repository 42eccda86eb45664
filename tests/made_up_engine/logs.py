from pathlib import Path

from slipstream.parsing.failure_files import read_failures
from slipstream.parsing.log_patterns import EngineLog, Stage, StartLog

START = StartLog(stages=(Stage("imagining", ("imagining",)),), marks=("made-up engine",), ready=("ready",))
LOG = EngineLog(START, read_failures(Path(__file__).with_name("failures.toml")))
