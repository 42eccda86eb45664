"""Ollama: the instructions of a Modelfile and the parameters that `PARAMETER` takes."""

from __future__ import annotations

from slipstream.parsing.flag_table import Flag, Gone, Table

INSTRUCTIONS = (
    *("FROM", "PARAMETER", "TEMPLATE", "SYSTEM", "ADAPTER", "DRAFT", "LICENSE", "MESSAGE", "RENDERER", "PARSER"),
    "REQUIRES",
)
ROLES = ("system", "user", "assistant")

PARAMETERS = Table(
    engine="ollama",
    version="Ollama main, 2026",
    source="from public documentation: docs/modelfile, the parser's lists, the options of ollama 0.6.3 (Python)",
    flags=(
        Flag("num_ctx", "int", at_least=1),
        Flag("num_predict", "int", at_least=-2),
        Flag("draft_num_predict", "int", at_least=0),
        Flag("num_keep", "int"),
        Flag("num_batch", "int", at_least=1),
        Flag("num_gpu", "int", at_least=-1),
        Flag("main_gpu", "int", at_least=0),
        Flag("num_thread", "int", at_least=0),
        Flag("use_mmap", "bool"),
        Flag("seed", "int"),
        Flag("stop"),
        Flag("temperature", "float", at_least=0),
        Flag("top_k", "int", at_least=0),
        Flag("top_p", "float", at_least=0, at_most=1),
        Flag("min_p", "float", at_least=0, at_most=1),
        Flag("typical_p", "float", at_least=0, at_most=1),
        Flag("repeat_last_n", "int", at_least=-1),
        Flag("repeat_penalty", "float", at_least=0),
        Flag("presence_penalty", "float"),
        Flag("frequency_penalty", "float"),
    ),
    gone=tuple(
        Gone(name, "nothing instead: remove it", works=True)
        for name in (
            *("penalize_newline", "low_vram", "f16_kv", "logits_all", "vocab_only", "use_mlock"),
            *("mirostat", "mirostat_tau", "mirostat_eta"),
        )
    )
    + tuple(Gone(name, "nothing instead: remove it") for name in ("tfs_z", "numa", "embedding_only")),
)
