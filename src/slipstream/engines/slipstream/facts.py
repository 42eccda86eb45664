"""Slipstream's own engine: facts."""

from __future__ import annotations

from collections.abc import Iterator

from slipstream.drafters import TranslateOptions
from slipstream.engines.facts import EngineFacts
from slipstream.findings import Finding
from slipstream.predict.own_memory import OWN_ENGINE
from slipstream.vocabularies.comparison import Pair
from slipstream.vocabularies.rules import TRANSLATE, differences


def check_vocabulary(pair: Pair) -> Iterator[Finding]:
    if pair.comparison.same_tokens:
        return
    overlap = pair.comparison.overlap
    how = (
        "by shared tokens" if overlap >= TranslateOptions().min_overlap else "as text, since too few tokens are shared"
    )
    yield TRANSLATE.finding(
        f"{differences(pair)}; {overlap:.0%} of the target's tokens are also in the draft's vocabulary", how=how
    )


FACTS = EngineFacts(
    name="slipstream",
    title=OWN_ENGINE.title,
    weights="folder",
    memory=OWN_ENGINE.memory,
    quantisations=dict.fromkeys(("none", "GGUF", "AWQ", "GPTQ", "FP8", "compressed-tensors"), ""),
    best_weights="the unquantised safetensors, a GGUF, or an AWQ or GPTQ checkpoint of the model",
    check_vocabulary=check_vocabulary,
    also_gguf=True,
    has_our_names=True,
    has_own_kernels=True,
    uses_torch=True,
    uses_llama_cpp_python=True,
)
