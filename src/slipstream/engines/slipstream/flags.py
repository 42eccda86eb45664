"""`slipstream serve`: its options."""

from __future__ import annotations

from slipstream import __version__
from slipstream.parsing.flag_table import Flag, Table

_TEXTS = "drafter policy backend device dtype kv-type activations kernels host api-key api-key-file cors-origin"

FLAGS = Table(
    engine="slipstream",
    version=__version__,
    source="slipstream serve --help",
    flags=(
        Flag("--model", aliases=("-m",)),
        Flag("--draft", aliases=("-d",)),
        Flag("--port", "int", at_least=0, at_most=65535),
        Flag("--context", "int", at_least=1),
        Flag("--max-streams", "int", at_least=1),
        Flag("--max-queue", "int", at_least=0),
        Flag("--max-tokens", "int", aliases=("-n",), at_least=1),
        *(Flag(f"--{name}") for name in _TEXTS.split()),
        *(Flag(f"--{name}", "int") for name in ("threads", "gpu-layers", "max-connections")),
        *(Flag(f"--{name}", "float") for name in ("request-limit", "idle-limit", "drain-limit", "max-stall")),
        *(Flag(f"--{name}", "switch") for name in ("exact", "allow-anonymous", "help")),
    ),
)
