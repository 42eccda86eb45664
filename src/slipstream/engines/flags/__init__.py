"""What each engine takes: names, types, ranges, choices, what was removed, and the version that was looked at.

Pure data. The doctor checks configurations against it, launchers are written from it.
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
