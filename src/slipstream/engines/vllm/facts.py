"""vLLM: facts."""

from __future__ import annotations

from collections.abc import Iterator

from slipstream.engines.container_image import EngineImage, Package
from slipstream.engines.facts import EngineFacts
from slipstream.findings import Finding
from slipstream.predict.memory import MB, EngineMemory
from slipstream.vocabularies.comparison import Pair
from slipstream.vocabularies.rules import unchecked, unequal_sizes

# The version that vLLM 0.32.0 asks for. It is compiled when it is installed; without --no-deps it could replace torch.
_ARCTIC_INFERENCE = Package("arctic-inference==0.1.1", "python3 -c 'import arctic_inference'", 1800, "--no-deps")


def check_vocabulary(pair: Pair) -> Iterator[Finding]:
    if not pair.same_rows:
        yield unequal_sizes(
            pair,
            "vLLM",
            limit="which must be equal",
            fix='Set "use_heterogeneous_vocab": true in --speculative-config (vLLM from mid-2026 on; only for '
            "draft_model, with greedy drafts), or use a draft model with the target's vocab_size, or an engine "
            "that ignores padding: llama.cpp, Slipstream.",
        )
    else:
        alternative = ', or set "use_heterogeneous_vocab": true in --speculative-config'
        yield from unchecked(pair, "vLLM", "compares only sizes", alternative)


FACTS = EngineFacts(
    name="vllm",
    title="vLLM",
    weights="folder",
    memory=EngineMemory(
        "tensor", 900 * MB, 900 * MB, 4096, 256, usable=0.9, kv_types=("f16", "q8"), vendors=("nvidia", "amd")
    ),
    # The draft's method is read from its own config.json, independent of the target's.
    quantisations=dict.fromkeys(("none", "AWQ", "GPTQ", "FP8", "bitsandbytes", "compressed-tensors", "MXFP4"), ""),
    best_weights="an AWQ, GPTQ or FP8 checkpoint of the model, or the unquantised one",
    check_vocabulary=check_vocabulary,
    least_capability=7.0,
    uses_torch=True,
    image=EngineImage(
        "vllm/vllm-openai:v{version}",
        "vllm",
        "--served-model-name",
        user=2000,  # the user that vLLM's documentation names for its image
        group=0,
        home="/home/vllm",
        packages={"suffix": _ARCTIC_INFERENCE},
        ray=Package("ray==2.60.0", "command -v ray", 120),  # not in its image since 0.19
    ),
)
