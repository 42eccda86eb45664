"""What Ollama can draft with: layers for multi-token prediction (MTP), in the model or in a file, and DFlash drafts.

It runs llama-server with `--spec-type draft-dflash` for a DFlash file and with `draft-mtp` for every other one
(llm/llama_server.go), so an ordinary draft model does not load.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from slipstream.errors import ModelError
from slipstream.findings import Finding, rule
from slipstream.model_files.local_models import local_place
from slipstream.models.files import expand_home
from slipstream.models.gguf.header import GgufHeader, read_header
from slipstream.models.sources.ollama import find_ollama_model

# Architectures that it runs with one request at a time, whatever OLLAMA_NUM_PARALLEL says (server/sched.go).
ONE_STREAM = (
    *("mllama", "qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe", "qwen3next", "lfm2", "lfm2moe"),
    *("nemotron_h", "nemotron_h_moe", "nemotron_h_omni"),
)
DRAFT_KIND = rule(
    "config-draft-kind",
    "blocks",
    "Ollama can't draft with an ordinary model",
    "Ollama drafts with MTP layers or DFlash drafts. {value} is neither (architecture {architecture}), so the model "
    "would not load.",
    "Run the pair with llama-server: slipstream launch llama-server --model {model} --draft {value} (a model of Ollama "
    "is ollama:NAME there). In a Modelfile, remove DRAFT.",
)
_MTP_AS_TENSORS = ("qwen35", "qwen35moe")  # in older files of these, only the tensors show it


def gguf_here(model: str) -> GgufHeader | None:
    """The header of a GGUF file on this disk, or of a model in Ollama's store; None if it can't be read here."""
    try:
        path = expand_home(model)
        return read_header(path if path.is_file() else find_ollama_model(model))
    except (ModelError, OSError, ValueError):
        return None


def file_here(path: str) -> GgufHeader | None:
    """Like gguf_here, for what can only be a file."""
    return gguf_here(path) if Path(path).expanduser().is_file() else None


def architecture(header: GgufHeader) -> str:
    return str(header.metadata.get("general.architecture", "unknown"))


def check_draft(target: str | None, draft: str) -> list[Finding]:
    """What speaks against a model as a draft by its file; empty for one that is not here."""
    try:
        header = gguf_here(str(local_place(draft).path))
    except ModelError:
        return []
    if header is None or is_draft(header):
        return []
    model, value, kind = shlex.quote(target or "MODEL"), shlex.quote(draft), architecture(header)
    return [DRAFT_KIND.finding(f"draft {draft}: {kind}", model=model, value=value, architecture=kind)]


def has_mtp(header: GgufHeader) -> bool:
    name = architecture(header)
    layers = header.metadata.get(f"{name}.nextn_predict_layers", 0)
    if isinstance(layers, int) and layers > 0:
        return True
    return name in _MTP_AS_TENSORS and any(tensor.startswith("mtp.") for tensor in header.tensors)


def is_draft(header: GgufHeader) -> bool:
    """Whether it can be the file of a DRAFT instruction."""
    return architecture(header) == "dflash" or has_mtp(header)
