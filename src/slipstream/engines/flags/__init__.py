"""The flags of each engine: names, types, ranges, choices, removed flags, and the engine version.

Pure data. The doctor checks configurations against it, and `launch` and `export` write command lines from it.
"""

from __future__ import annotations

import slipstream.engines.flags.llama_server as llama_server
import slipstream.engines.flags.ollama as ollama
import slipstream.engines.flags.sglang as sglang
import slipstream.engines.flags.tabbyapi as tabbyapi
import slipstream.engines.flags.vllm as vllm
from slipstream.engines.flags.table import Flag, Gone, Table

TABLES: dict[str, tuple[Table, ...]] = {
    "vllm": (vllm.FLAGS, vllm.SPECULATIVE),
    "llama-server": (llama_server.FLAGS,),
    "sglang": (sglang.FLAGS,),
    "tabbyapi": tuple(tabbyapi.SECTIONS.values()),
    "ollama": (ollama.PARAMETERS,),
}

__all__ = ["TABLES", "Flag", "Gone", "Table"]
