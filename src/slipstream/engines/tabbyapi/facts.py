"""TabbyAPI and ExLlama: facts."""

from __future__ import annotations

from collections.abc import Iterator

from slipstream.engines.facts import EngineFacts
from slipstream.findings import Finding
from slipstream.predict.memory import MB, EngineMemory
from slipstream.vocabularies.comparison import Pair
from slipstream.vocabularies.rules import OUT_OF_RANGE, unchecked

_EXLLAMA_V2 = "needs ExLlamaV2, which TabbyAPI has dropped: older versions of TabbyAPI run it"


def check_vocabulary(pair: Pair) -> Iterator[Finding]:
    highest = max(pair.comparison.target.num_tokens, pair.comparison.draft.num_tokens)
    if highest > min(pair.target_rows, pair.draft_rows):
        yield OUT_OF_RANGE.finding(f"{pair.sizes}, but the highest token id is {highest - 1:,}", engine="ExLlama")
    yield from unchecked(pair, "ExLlama", "does not compare vocabularies", ", or n-gram drafting without a draft model")


FACTS = EngineFacts(
    name="tabbyapi",
    title="ExLlama",
    aliases=("exllama", "exllamav2", "exllamav3"),
    weights="folder",
    finds_models=False,
    memory=EngineMemory(
        "layers", 500 * MB, 0, 2048, 32, keeps_windows=False, needs_gpu=True, vendors=("nvidia", "amd")
    ),
    quantisations={
        "none": "",  # float16 safetensors
        "EXL2": _EXLLAMA_V2,
        "EXL3": "",  # ExLlamaV3 only
        "GPTQ": f"{_EXLLAMA_V2}, with 4 bits",
    },
    best_weights="an EXL3 version of the model, or its float16 safetensors",
    check_vocabulary=check_vocabulary,
    has_own_kernels=True,
    least_capability=6.0,
    uses_torch=True,
)
