"""What 8 bits change: perplexity of one GGUF file with fp32 activations, with 8-bit ones, with an 8-bit cache too, and
in llama.cpp.

    python benchmarks/perplexity.py MODEL.gguf PROMPTS.jsonl [--tokens 2048]

The text is that of the prompts, in pieces of 256 tokens; the first 32 of each only give context.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

import slipstream
from slipstream.backends.llamacpp.options import LlamaCppOptions
from slipstream.backends.torch.options import TorchOptions
from slipstream.core.protocols import Model, ScoreRequest
from slipstream.core.tree import ROOT, DraftTree

PIECE = 256
CONTEXT = 32
ROWS = 32  # scored at once
WAYS = {
    "fp32 activations": TorchOptions(device="cpu", activations="fp", context_length=1024, kv_tokens=2048),
    "8-bit activations": TorchOptions(device="cpu", context_length=1024, kv_tokens=2048),
    "8-bit activations and cache": TorchOptions(device="cpu", kv_type="q8_0", context_length=1024, kv_tokens=2048),
    "llama.cpp": LlamaCppOptions(n_gpu_layers=0, context_length=1024),
}


def texts(path: Path) -> Iterator[str]:
    for line in path.read_text().splitlines():
        row = json.loads(line)
        yield row["prompt"] if "prompt" in row else "\n".join(row["turns"])


def losses(model: Model, piece: Sequence[int]) -> list[float]:
    """-log of the probability of each token after the context."""
    sequence = model.open(piece, len(piece) + 1)
    found: list[float] = []
    for start in range(sequence.length, len(piece) - 1, ROWS):
        chunk = list(piece[start : start + ROWS])
        scores = model.score([ScoreRequest(sequence, chunk[:1], DraftTree.chain(chunk[1:]))])[0]
        for i, after in enumerate(piece[start + 1 : start + 1 + len(chunk)]):
            row = scores.row(ROOT + i).astype(np.float64)
            top = row.max()
            found.append(float(top + math.log(np.exp(row - top).sum()) - row[after]))
        sequence.commit(list(range(len(chunk) - 1)))
    sequence.close()
    return found[CONTEXT:]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--tokens", type=int, default=2048)
    given = parser.parse_args()
    for name, options in WAYS.items():
        loaded = slipstream.load_model(given.model, options)
        ids = loaded.tokenizer.encode("\n\n".join(texts(given.prompts)))[: given.tokens]
        all_losses = [
            loss for start in range(0, len(ids), PIECE) for loss in losses(loaded.model, ids[start : start + PIECE])
        ]
        mean = float(np.mean(all_losses))
        print(f"{name:18s} perplexity {math.exp(mean):.4f} ({len(all_losses)} tokens, loss {mean:.5f})", flush=True)


if __name__ == "__main__":
    main()
