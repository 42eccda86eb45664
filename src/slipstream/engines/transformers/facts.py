"""transformers: facts."""

from __future__ import annotations

from collections.abc import Iterator

from slipstream.engines.facts import EngineFacts
from slipstream.findings import Finding
from slipstream.predict.memory import MB, EngineMemory
from slipstream.vocabularies.comparison import Pair
from slipstream.vocabularies.rules import unchecked, unequal_sizes


def check_vocabulary(pair: Pair) -> Iterator[Finding]:
    if not pair.same_rows:
        yield unequal_sizes(
            pair,
            "transformers",
            limit="which must be equal unless both tokenizers are given",
            fix="Pass both tokenizers: generate(..., assistant_model=draft, tokenizer=target_tokenizer, "
            "assistant_tokenizer=draft_tokenizer). Drafts are then translated.",
        )
    else:
        yield from unchecked(pair, "transformers", "compares only sizes (and refuses assistant_tokenizer here)", "")


FACTS = EngineFacts(
    name="transformers",
    title="transformers",
    aliases=("hf",),
    weights="folder",
    memory=EngineMemory("layers", 600 * MB, 0, 2048, 32, keeps_latent=False, offloads=True),
    quantisations={
        **dict.fromkeys(("none", "AWQ", "GPTQ", "FP8", "bitsandbytes", "compressed-tensors", "MXFP4"), ""),
        "GGUF": "transformers dequantises GGUF weights when it loads them (gguf_file=)",
    },
    best_weights="an AWQ, GPTQ or bitsandbytes checkpoint of the model, or the unquantised one",
    check_vocabulary=check_vocabulary,
    uses_torch=True,
)
