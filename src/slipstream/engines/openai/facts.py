"""Any OpenAI-compatible server: nothing is known of it but its address."""

from __future__ import annotations

from slipstream.engines.facts import EngineFacts
from slipstream.engines.transformers.facts import FACTS as TRANSFORMERS

FACTS = EngineFacts(
    name="openai",
    title="an OpenAI-compatible server",
    weights="folder",
    memory=TRANSFORMERS.memory,
    quantisations={},
    best_weights="what the server reads",
    check_vocabulary=lambda pair: iter(()),
    also_gguf=True,
)
