"""Small GGUF files in the outline of larger models: true vocabularies and shapes, hardly any weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np

MERGED = {100: "x", 101: "y", 102: "xy"}  # a tokenizer needs a merge, and the tokens that it merges


def vocabulary(size: int, samples: Mapping[int, str], prefix: str = "t") -> list[str]:
    """Distinct tokens, with the given ones in their places."""
    return [samples.get(i, MERGED.get(i, f"{prefix}{i}")) for i in range(size)]


def write(
    path: Path, tokens: Sequence[str], *, layers: int = 2, hidden: int = 8, context: int = 4096, heads: int = 2
) -> Path:
    """A model of `layers` layers. The number of parameters grows with `layers` and `hidden`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(layers)
    writer.add_context_length(context)
    writer.add_embedding_length(hidden)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(list(tokens))
    writer.add_token_types([1] * len(tokens))
    if set(MERGED.values()) <= set(tokens):
        writer.add_token_merges([f"{MERGED[100]} {MERGED[101]}"])
    writer.add_tensor("token_embd.weight", np.zeros((len(tokens), hidden), np.float16))
    for layer in range(layers):
        writer.add_tensor(f"blk.{layer}.ffn_up.weight", np.zeros((hidden, 4 * hidden), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def put_in_ollama(store: Path, name: str, tag: str, model: Path) -> Path:
    """Adds a GGUF file to an Ollama store; returns the blob."""
    digest = hashlib.sha256(f"{name}:{tag}".encode()).hexdigest()
    manifest = store / "manifests" / "registry.ollama.ai" / "library" / name / tag
    manifest.parent.mkdir(parents=True, exist_ok=True)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"}
    manifest.write_text(json.dumps({"layers": [layer]}))
    blob = store / "blobs" / f"sha256-{digest}"
    blob.parent.mkdir(exist_ok=True)
    blob.write_bytes(model.read_bytes())
    return blob


def put_in_hub_cache(hub: Path, repo: str, files: Sequence[Path], commit: str = "0" * 40, branch: str = "main") -> Path:
    """Adds a snapshot to a hub cache as the hub library lays it out: links to blobs. Returns the snapshot."""
    root = hub / f"models--{repo.replace('/', '--')}"
    snapshot = root / "snapshots" / commit
    for folder in (snapshot, root / "refs", root / "blobs"):
        folder.mkdir(parents=True, exist_ok=True)
    (root / "refs" / branch).write_text(commit)
    for file in files:
        blob = root / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()
        blob.write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(Path("..", "..", "blobs", blob.name))
    return snapshot
