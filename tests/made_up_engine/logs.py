from slipstream.findings import rule
from slipstream.parsing.log_patterns import EngineLog, Patterns, Stage, StartLog

FAILURES = Patterns()
FAILURES.add(
    rule("log-made-up", "blocks", "The made-up engine has no imagination", "It can't invent {what}.", "Think again."),
    "imagination exhausted",
    matches=r"imagination exhausted: (?P<what>\w+)",
)
START = StartLog(stages=(Stage("imagining", ("imagining",)),), marks=("made-up engine",), ready=("ready",))
LOG = EngineLog(START, tuple(FAILURES))
