"""Which engine supports which quantisation, for target and draft, and which GPU a method needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from slipstream.errors import UsageError
from slipstream.findings import Finding, rule
from slipstream.model_files.model_facts import ModelFacts

Role = Literal["target", "draft"]
Level = Literal["yes", "limited", "no"]
Capability = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Support:
    """How well an engine supports a method; `note` describes the limits."""

    target: Level
    draft: Level
    note: str = ""


YES = Support("yes", "yes")
NO = Support("no", "no")
VLLM_DRAFT = Support("yes", "yes", "the draft's method is read from its own config.json, independent of the target's")
VLLM_GGUF = Support(
    "limited", "limited", "GGUF support in vLLM is experimental: single files only, some architectures, slower"
)
SGLANG_LIMITED = Support("limited", "limited", "needs --load-format {format}; supports fewer architectures, slower")
DEQUANTISED = Support("limited", "limited", "transformers dequantises GGUF weights when it loads them (gguf_file=)")
GGUF_ONLY = {"GGUF": YES}

# A method that is not listed for an engine is not supported.
SUPPORT: dict[str, dict[str, Support]] = {
    "vllm": {
        **dict.fromkeys(("none", "AWQ", "GPTQ", "FP8", "bitsandbytes", "compressed-tensors", "MXFP4"), VLLM_DRAFT),
        "GGUF": VLLM_GGUF,
    },
    "sglang": {
        **dict.fromkeys(("none", "AWQ", "GPTQ", "FP8", "compressed-tensors", "MXFP4"), YES),
        **dict.fromkeys(("GGUF", "bitsandbytes"), SGLANG_LIMITED),
    },
    "transformers": {
        **dict.fromkeys(("none", "AWQ", "GPTQ", "FP8", "bitsandbytes", "compressed-tensors", "MXFP4"), YES),
        "GGUF": DEQUANTISED,
    },
    "llama.cpp": GGUF_ONLY,
    "ollama": GGUF_ONLY,
    "exllama": {
        "none": Support("yes", "yes", "as float16 safetensors"),
        "EXL2": Support("yes", "yes", "ExLlamaV2 only; target and draft must be for the same version"),
        "EXL3": Support("yes", "yes", "ExLlamaV3 only; target and draft must be for the same version"),
        "GPTQ": Support("limited", "limited", "ExLlamaV2 only, 4 bits"),
    },
    "slipstream": {"none": Support("yes", "yes", "float32, bfloat16 and float16 safetensors"), "GGUF": YES},
}
ALIASES = {"llama-server": "llama.cpp", "llamacpp": "llama.cpp", "tabbyapi": "exllama", "exllamav2": "exllama"}
ALIASES |= {"exllamav3": "exllama"}
WHAT_TO_TAKE = {
    "vllm": "an AWQ, GPTQ or FP8 checkpoint of the model, or the unquantised one",
    "sglang": "an AWQ, GPTQ or FP8 checkpoint of the model, or the unquantised one",
    "transformers": "an AWQ, GPTQ or bitsandbytes checkpoint of the model, or the unquantised one",
    "llama.cpp": "a GGUF of the model (or convert the unquantised checkpoint: "
    "python convert_hf_to_gguf.py FOLDER --outfile model.gguf)",
    "ollama": "a GGUF of the model (ollama pull NAME, or FROM ./model.gguf in a Modelfile)",
    "exllama": "an EXL2 (ExLlamaV2) or EXL3 (ExLlamaV3) version of the model, or its float16 safetensors",
    "slipstream": "the unquantised safetensors or a GGUF of the model",
}

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

METHOD = rule(
    "weights-quantisation",
    "blocks",
    "The engine does not support this quantisation",
    "{engine} can't load {method} weights as a {role}. It supports {taken}.",
    "For {engine} use {instead}, or run this model with {others}.",
)
LIMITED = rule(
    "weights-quantisation-limited",
    "slows",
    "The engine supports this quantisation only in part",
    "{note}.",
    "It may work unchanged; {instead} works best with {engine}.",
)
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


def check_quantisation(facts: ModelFacts, engine: str, role: Role) -> list[Finding]:
    """Whether an engine supports the model in this role. Empty if it does, or if the method is unknown.

    Raises UsageError for an unknown engine.
    """
    engine = engine_named(engine)
    if facts.quantisation is None:
        return []
    method = facts.quantisation
    support = SUPPORT[engine].get(method, NO)
    level = support.target if role == "target" else support.draft
    seen = f"{role} {facts.name}: {label(facts)}"
    if level == "yes":
        return []
    if level == "limited":
        note = support.note.format(format=method.lower())
        return [LIMITED.finding(seen, note=note, instead=WHAT_TO_TAKE[engine], engine=engine)]
    others = [name for name, row in SUPPORT.items() if row.get(method, NO).target == "yes"]
    return [
        METHOD.finding(
            seen,
            engine=engine,
            method=_shown(method),
            role=role,
            taken=", ".join(map(_shown, SUPPORT[engine])),
            instead=WHAT_TO_TAKE[engine],
            others=" or ".join(others) or "the engine that it was made for",
        )
    ]


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


def engine_named(engine: str) -> str:
    """The engine's entry in SUPPORT. Raises UsageError for an unknown engine."""
    known = ALIASES.get(engine.lower(), engine.lower())
    if known not in SUPPORT:
        raise UsageError(f"unknown engine {engine!r}; expected one of {', '.join(SUPPORT)}")
    return known


def label(facts: ModelFacts) -> str:
    """GGUF Q4_K_M, AWQ 4 bits, not quantised (BF16)."""
    kind = facts.quantisation_kind
    if facts.quantisation in (None, "none"):
        return f"not quantised ({kind})" if kind else "not quantised"
    return f"{facts.quantisation} {kind}" if kind else str(facts.quantisation)


def _shown(method: str) -> str:
    return "unquantised" if method == "none" else method


def _version(capability: Capability) -> str:
    return f"{capability[0]}.{capability[1]}"
