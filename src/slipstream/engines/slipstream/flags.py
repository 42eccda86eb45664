"""`slipstream serve`: the options that the driver writes."""

from __future__ import annotations

from slipstream import __version__
from slipstream.parsing.flag_table import Flag, Table

FLAGS = Table(
    engine="slipstream",
    version=__version__,
    source="slipstream serve --help",
    flags=(
        Flag("--model"),
        Flag("--draft"),
        Flag("--drafter"),
        Flag("--policy"),
        Flag("--host"),
        Flag("--port", "int", at_least=0, at_most=65535),
        Flag("--context", "int", at_least=1),
        Flag("--max-streams", "int", at_least=1),
        Flag("--allow-anonymous", "switch"),
    ),
)
