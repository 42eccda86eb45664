"""SGLang's speculative methods: an algorithm each, and the flags that Slipstream writes for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from slipstream.engines.engine_types import Argument, Method, Need
from slipstream.engines.sglang.flags import BLOCK_SIZES, TREE_ALGORITHMS

_S = "--speculative"


@dataclass(frozen=True, slots=True)
class SglangMethod:
    """An algorithm, or a variant of one with a flag of its own."""

    name: str
    draft: Need = "unused"
    like: tuple[str, ...] = ()
    lengths: tuple[int, ...] = (2, 3, 4, 6)
    variant_of: str = ""  # SGLang's name, if this is a variant
    more: Argument | None = None  # the flag of the variant
    needs_length: bool = False  # SGLang has no default
    needs_arguments: tuple[str, ...] = ()  # flags that the user has to pass on
    needs: str = ""  # beyond SGLang and a model

    @property
    def algorithm(self) -> str:
        return self.variant_of or self.name

    @property
    def method(self) -> Method:
        return Method(self.name, self.draft, self.like, self.lengths, needs_arguments=self.needs_arguments)

    def length_arguments(self, length: int) -> Iterator[Argument]:
        """The flags for a chain of this many drafted tokens. Without any of them SGLang chooses."""
        if self.algorithm in TREE_ALGORITHMS:
            yield Argument(f"{_S}-num-steps", str(length), "drafted tokens per step: steps of the draft")
            yield Argument(
                f"{_S}-eagle-topk", "1", "a chain: branches cost time, and pay off only if acceptance is low"
            )
        if self.algorithm in BLOCK_SIZES:
            block = BLOCK_SIZES[self.algorithm]
            yield Argument(block.flag, str(length + 1 - block.num_more), "tokens that the head drafts at once")
        else:
            why = "tokens to verify: the drafted tokens and one more"
            yield Argument(f"{_S}-num-draft-tokens", str(length + 1), why)


_ADAPTIVE = Argument(f"{_S}-adaptive", why="the draft length follows the measured acceptance")
_CHAIN = Argument(f"{_S}-ngram-max-bfs-breadth", "1", "a chain; the default is a tree of up to 10 branches")
METHODS = (
    SglangMethod("STANDALONE", "required", like=("model",)),
    SglangMethod("EAGLE", "optional"),
    SglangMethod("EAGLE3", "required"),
    SglangMethod("NEXTN", "optional", lengths=(1, 2, 3)),
    SglangMethod("EAGLE_ADAPTIVE", "optional", lengths=(), variant_of="EAGLE", more=_ADAPTIVE),
    SglangMethod("EAGLE3_ADAPTIVE", "required", lengths=(), variant_of="EAGLE3", more=_ADAPTIVE),
    SglangMethod("NEXTN_ADAPTIVE", "optional", lengths=(), variant_of="NEXTN", more=_ADAPTIVE),
    SglangMethod("DFLASH", "required", lengths=(4, 8, 15), needs="the draft must be a DFlash head for this model"),
    SglangMethod(
        "DSPARK", "optional", lengths=(3, 5, 7),
        needs="DSPARK needs a DSpark head for this model: a draft, or part of the model's folder",
    ),
    SglangMethod("NGRAM", like=("ngram", "suffix"), lengths=(4, 8, 12)),
    SglangMethod("NGRAM_CHAIN", lengths=(4, 8, 12), variant_of="NGRAM", more=_CHAIN),
    SglangMethod(
        "UNO", lengths=(2, 4, 8), needs_length=True, needs_arguments=("--uno-lora-path",),
        needs="UNO needs one CUDA GPU with FA3 attention, and a UNO adapter for this model",
    ),
)  # fmt: skip
BY_NAME = {way.name: way for way in METHODS}
