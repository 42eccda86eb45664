"""Slipstream: language models answer faster without changing a word.

import slipstream

engine = slipstream.load("smollm2-135m", drafter="suffix")
for token in engine.generate([{"role": "user", "content": "Hello!"}]):
    print(token.text, end="")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slipstream.core.engine import Engine
    from slipstream.core.generation import Generation
    from slipstream.core.sampling import Sampling
    from slipstream.core.stats import Stats
    from slipstream.core.stream import Limits, Token
    from slipstream.errors import SlipstreamError
    from slipstream.loading import LoadedModel, load, load_model

__version__ = "0.1.0"

_HOMES = {
    "Engine": "slipstream.core.engine",
    "Generation": "slipstream.core.generation",
    "Limits": "slipstream.core.stream",
    "LoadedModel": "slipstream.loading",
    "Sampling": "slipstream.core.sampling",
    "SlipstreamError": "slipstream.errors",
    "Stats": "slipstream.core.stats",
    "Token": "slipstream.core.stream",
    "load": "slipstream.loading",
    "load_model": "slipstream.loading",
}

__all__ = [
    "Engine",
    "Generation",
    "Limits",
    "LoadedModel",
    "Sampling",
    "SlipstreamError",
    "Stats",
    "Token",
    "load",
    "load_model",
]


def __getattr__(name: str) -> Any:
    """Loads the public names when they are asked for: `import slipstream` stays quick and needs no torch."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'slipstream' has no attribute {name!r}")
