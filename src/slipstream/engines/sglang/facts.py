"""SGLang: facts."""

from __future__ import annotations

from collections.abc import Iterator

from slipstream.engines.container_image import EngineImage
from slipstream.engines.facts import EngineFacts
from slipstream.findings import Finding
from slipstream.predict.memory import MB, EngineMemory
from slipstream.vocabularies.comparison import Pair
from slipstream.vocabularies.rules import TOKENS, exact_differences, listed, unequal_sizes

_LIMITED = "needs --load-format {format}; supports fewer architectures, slower"


def check_vocabulary(pair: Pair) -> Iterator[Finding]:
    if not pair.same_rows:
        yield unequal_sizes(
            pair,
            "SGLang",
            limit="which must be equal in STANDALONE mode (versions before mid-2026 start without a check)",
            fix="Use a draft model with the target's vocab_size, or an EAGLE head for the target, or an engine that "
            "ignores padding: llama.cpp, Slipstream.",
        )
    elif differing := list(exact_differences(pair, 0)):
        yield TOKENS.finding(listed(differing), engine="SGLang", alternative=", or an EAGLE head for the target")


FACTS = EngineFacts(
    name="sglang",
    title="SGLang",
    weights="folder",
    also_gguf=True,
    memory=EngineMemory(
        "tensor",
        900 * MB,
        900 * MB,
        4096,
        256,
        usable=0.88,
        kv_types=("f16", "q8"),
        keeps_windows=False,
        vendors=("nvidia", "amd"),
    ),
    quantisations={
        **dict.fromkeys(("none", "AWQ", "GPTQ", "FP8", "compressed-tensors", "MXFP4"), ""),
        **dict.fromkeys(("GGUF", "bitsandbytes"), _LIMITED),
    },
    best_weights="an AWQ, GPTQ or FP8 checkpoint of the model, or the unquantised one",
    check_vocabulary=check_vocabulary,
    least_capability=7.5,
    uses_torch=True,
    image=EngineImage("lmsysorg/sglang:v{version}", "sglang", "--served-model-name"),  # as root: caches under /root
)
