"""Quantisations: their names, and which GPU a method needs."""

from __future__ import annotations

from typing import Literal

from slipstream.findings import Finding, rule
from slipstream.model_files.model_facts import ModelFacts

Role = Literal["target", "draft"]
Capability = tuple[int, int]


# Minimum compute capability of an NVIDIA GPU, from vLLM's table of supported hardware.
LEAST_CAPABILITY: dict[str, Capability] = {
    "GPTQ": (7, 0),
    "bitsandbytes": (7, 0),
    "GGUF": (7, 0),
    "AWQ": (7, 5),
    "Marlin": (8, 0),  # the fast kernels for AWQ and GPTQ
    "FP8": (8, 9),  # FP8 matrix products; below it, only weights are in FP8
}
FP8_WEIGHTS_ONLY: Capability = (7, 5)

CAPABILITY = rule(
    "weights-capability",
    "blocks",
    "The GPU is too old for this quantisation",
    "{method} needs a GPU of compute capability {needed} or higher.",
    "Use another quantisation of the model ({instead}), or another GPU.",
)
SLOW_KERNELS = rule(
    "weights-slow-kernels",
    "slows",
    "The GPU is too old for the fast kernels of this quantisation",
    "{cause}",
    "{fix}",
)


def check_capability(facts: ModelFacts, capability: Capability) -> list[Finding]:
    """Whether an NVIDIA GPU of this compute capability can run the method, and with its fast kernels."""
    method = facts.quantisation or "none"
    needed = LEAST_CAPABILITY.get(method)
    seen = f"{facts.name}: {label(facts)}; GPU of compute capability {_version(capability)}"
    if needed is None:
        return []
    if method == "FP8" and FP8_WEIGHTS_ONLY <= capability < needed:
        cause = (
            f"FP8 matrix products need compute capability {_version(needed)}. Below it, vLLM only stores the weights "
            "in FP8: this saves memory, but computes no faster."
        )
        return [SLOW_KERNELS.finding(seen, cause=cause, fix="It works unchanged; AWQ or GPTQ reads fewer bytes.")]
    if capability < needed:
        instead = "GPTQ or GGUF" if method == "AWQ" else "AWQ" if capability >= LEAST_CAPABILITY["AWQ"] else "GGUF"
        return [CAPABILITY.finding(seen, method=method, needed=_version(needed), instead=instead)]
    marlin = LEAST_CAPABILITY["Marlin"]
    if method in ("AWQ", "GPTQ") and capability < marlin:
        cause = (
            f"The Marlin kernels need compute capability {_version(marlin)}; the older kernels used here are slower "
            "for batches."
        )
        fix = f"Set the kernels explicitly: --quantization {method.lower()} --dtype half (bfloat16 needs 8.0 too)."
        return [SLOW_KERNELS.finding(seen, cause=cause, fix=fix)]
    return []


def label(facts: ModelFacts) -> str:
    """GGUF Q4_K_M, AWQ 4 bits, not quantised (BF16)."""
    kind = facts.quantisation_kind
    if facts.quantisation is None and facts.format is None:
        return "unknown"
    if facts.quantisation in (None, "none"):
        return f"not quantised ({kind})" if kind else "not quantised"
    return f"{facts.quantisation} {kind}" if kind else str(facts.quantisation)


def _version(capability: Capability) -> str:
    return f"{capability[0]}.{capability[1]}"
