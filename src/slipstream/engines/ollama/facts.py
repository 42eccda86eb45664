"""Ollama: facts. It runs llama.cpp's server."""

from __future__ import annotations

from slipstream.engines.facts import EngineFacts
from slipstream.engines.llama_server.facts import FACTS as LLAMA_CPP
from slipstream.engines.ollama.drafts import check_draft

FACTS = EngineFacts(
    name="ollama",
    title="Ollama",
    weights="gguf",
    memory=LLAMA_CPP.memory,
    quantisations=LLAMA_CPP.quantisations,
    best_weights="a GGUF of the model (ollama pull NAME, or FROM ./model.gguf in a Modelfile)",
    check_vocabulary=LLAMA_CPP.check_vocabulary,
    check_draft=check_draft,
    has_own_kernels=LLAMA_CPP.has_own_kernels,
    least_capability=5.0,
)
