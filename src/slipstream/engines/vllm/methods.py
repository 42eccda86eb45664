"""vLLM's speculative methods: what each needs in `--speculative-config`, and what Slipstream writes there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slipstream.engines.engine_types import Method, Need

_LOOKUP = {"prompt_lookup_max": 4, "prompt_lookup_min": 2}


@dataclass(frozen=True, slots=True)
class VllmMethod:
    """A method, or a variant of one with keys of its own. If model and tokens are both optional, one is needed."""

    name: str
    model: Need = "unused"
    tokens: Need = "required"
    variant_of: str = ""  # vLLM's name, if this is a variant
    keys: Mapping[str, Any] = field(default_factory=dict)  # in addition to method, model and num_speculative_tokens
    like: tuple[str, ...] = ()
    length: int = 4  # the default, if tokens are required
    lengths: tuple[int, ...] = (2, 4, 8)
    most_tokens: int | None = None
    is_asynchronous: bool = True  # whether vLLM runs it with async scheduling
    needs: str = ""  # beyond vLLM and a model
    missing: str = ""  # why this version can't run it
    exported: bool = True  # whether Slipstream offers it

    @property
    def vllm_name(self) -> str:
        return self.variant_of or self.name

    @property
    def needs_model_or_tokens(self) -> bool:
        return self.model == self.tokens == "optional"

    @property
    def method(self) -> Method:
        return Method(self.name, self.model, self.like, self.lengths, takes_draft_streams=True, missing=self.missing)


METHODS = (
    VllmMethod("draft_model", "required", like=("model",)),
    VllmMethod(
        "draft_model_other_vocabulary", "required", variant_of="draft_model", keys={"use_heterogeneous_vocab": True},
        like=("translate",),
    ),
    VllmMethod(
        "draft_model_parallel", "required", variant_of="draft_model", keys={"parallel_drafting": True}, length=8,
        lengths=(4, 8, 12), needs="the draft model must be trained for parallel drafting (PARD)",
    ),
    VllmMethod("ngram", keys=_LOOKUP, like=("ngram",), is_asynchronous=False),
    VllmMethod("ngram_gpu", keys=_LOOKUP),
    VllmMethod(
        "suffix", tokens="optional", like=("suffix",), lengths=(8, 16, 24), is_asynchronous=False,
        needs="suffix decoding needs arctic-inference in vLLM's environment: pip install arctic-inference",
    ),
    VllmMethod("eagle", "required", needs="the draft must be an EAGLE head for this model"),
    VllmMethod("eagle3", "required", needs="the draft must be an EAGLE-3 head for this model"),
    VllmMethod(
        "eagle3_parallel", "required", variant_of="eagle3", keys={"parallel_drafting": True}, length=8,
        lengths=(4, 8, 12),
        needs="the draft must be an EAGLE-3 head for this model, trained for parallel drafting (P-EAGLE)",
    ),
    VllmMethod("medusa", "required", is_asynchronous=False, needs="the draft must be Medusa heads for this model"),
    VllmMethod(
        "mtp", "optional", length=1, lengths=(1, 2, 3),
        needs="the model, or the draft, must have MTP layers",
    ),
    VllmMethod(
        "dflash", "required", length=8, lengths=(4, 8, 15), needs="the draft must be a DFlash head for this model",
    ),
    VllmMethod(
        "dspark", "optional", "optional", lengths=(3, 5, 7),
        needs="dspark needs a GPU and a DSpark head for this model: a draft, or part of the model as in DeepSeek-V4",
    ),
    VllmMethod(
        "mlp_speculator", "required", "optional", is_asynchronous=False,
        missing="vLLM 0.32 lists this method, but has no code to run it; use eagle3 or draft_model",
    ),
    VllmMethod("extract_hidden_states", most_tokens=1, exported=False),
    VllmMethod("custom_class", "required", is_asynchronous=False, exported=False),
)  # fmt: skip

VLLM_NAMES = tuple(way.name for way in METHODS if not way.variant_of)
EXPORTED = {way.name: way for way in METHODS if way.exported}
