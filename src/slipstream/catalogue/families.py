"""Well-known model families by vocabulary: the family of a vocabulary, and the published models that share it.

A family is recognised by the token strings at a few ids, which no other family here has at the same ids. `source` says
where the sample tokens are from: VERIFIED ones were read from the family's own tokenizer file with Slipstream's
readers, the others were not checked against a file. Sizes and contexts of members are from public sources, unchecked. A
match is only a hint; whether two models are compatible is always decided by comparing their files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Source = Literal["verified", "from public documentation"]
VERIFIED: Source = "verified"
DOCUMENTED: Source = "from public documentation"


@dataclass(frozen=True, slots=True)
class Member:
    """A published model. `repo` is its id on the hub."""

    repo: str
    params_b: float  # billions of parameters
    num_layers: int
    num_kv_heads: int
    head_dim: int
    context_length: int

    @property
    def name(self) -> str:
        return self.repo.partition("/")[2]


@dataclass(frozen=True, slots=True)
class Family:
    """Models that share a vocabulary. `vocab_sizes` are rows of the embedding; there are several if the padding
    differs.
    """

    name: str
    kind: str  # kind of tokenizer
    vocab_sizes: tuple[int, ...]
    samples: Mapping[int, str]
    source: Source
    members: tuple[Member, ...]
    fingerprint: str | None = None  # of the vocabulary (`Vocabulary.fingerprint`), if a file was available
    note: str = ""

    def has(self, strings: Sequence[str | None]) -> bool:
        """Whether a vocabulary looks like this family's."""
        return all(token_id < len(strings) and strings[token_id] == text for token_id, text in self.samples.items())

    def drafts_for(self, params_b: float) -> list[Member]:
        """Members small enough to draft for a target of this size (well below half of it), smallest first."""
        return sorted((m for m in self.members if m.params_b <= params_b / 2.5), key=lambda m: m.params_b)


def recognise(strings: Sequence[str | None]) -> Family | None:
    """The family of a vocabulary, or None. If one family's tokens contain another's, the larger family is returned."""
    matches = [family for family in FAMILIES if family.has(strings)]
    return max(matches, key=lambda family: max(family.samples), default=None)


def member_named(name: str) -> Member | None:
    """A member by its hub id or the part after the slash, case-insensitive; None if it is not in the table."""
    wanted = name.lower()
    members = (member for family in FAMILIES for member in family.members)
    return next((m for m in members if wanted in (m.repo.lower(), m.name.lower())), None)


def member_sized(params_b: float) -> Member:
    """The member nearest in size."""
    members = (member for family in FAMILIES for member in family.members)
    return min(members, key=lambda m: abs(math.log(m.params_b / params_b)))


LLAMA2_SAMPLES = {278: "▁the", 450: "▁The", 29871: "▁", 29889: "."}
LLAMA2_BPE = "SentencePiece BPE"
BYTE_LEVEL = "byte-level BPE"

FAMILIES: tuple[Family, ...] = (
    Family(
        "Llama 2", LLAMA2_BPE, (32000,), LLAMA2_SAMPLES, DOCUMENTED,
        (
            Member("JackFram/llama-68m", 0.068, 2, 12, 64, 2048),
            Member("JackFram/llama-160m", 0.162, 12, 12, 64, 2048),
            Member("TinyLlama/TinyLlama-1.1B-Chat-v1.0", 1.1, 22, 4, 64, 2048),
            Member("princeton-nlp/Sheared-LLaMA-1.3B", 1.35, 24, 16, 128, 4096),
            Member("meta-llama/Llama-2-7b-chat-hf", 6.74, 32, 32, 128, 4096),
            Member("meta-llama/Llama-2-13b-chat-hf", 13.0, 40, 40, 128, 4096),
            Member("meta-llama/Llama-2-70b-chat-hf", 69.0, 80, 8, 128, 4096),
            Member("152334H/miqu-1-70b-sf", 69.0, 80, 8, 128, 32764),
        ),
        note=
            "TinyLlama and Miqu are in this family: Miqu is said to be retrained from Llama 2 70B, which was not "
            "checked. Merges and requantised copies of Miqu have different vocabularies: the doctor compares the "
            "actual file.",
    ),
    Family(
        "CodeLlama", LLAMA2_BPE, (32016,), LLAMA2_SAMPLES | {32007: "▁<PRE>"}, DOCUMENTED,
        (
            Member("codellama/CodeLlama-7b-Instruct-hf", 6.74, 32, 32, 128, 16384),
            Member("codellama/CodeLlama-13b-Instruct-hf", 13.0, 40, 40, 128, 16384),
            Member("codellama/CodeLlama-70b-Instruct-hf", 69.0, 80, 8, 128, 4096),
        ),
        note="CodeLlama 34B has 32,000 ids and belongs to Llama 2.",
    ),
    Family(
        "Llama 3.x", BYTE_LEVEL, (128256,), {279: "Ġthe", 791: "The", 1000: "indow", 100000: "IClient"}, VERIFIED,
        (
            Member("meta-llama/Llama-3.2-1B-Instruct", 1.24, 16, 8, 64, 131072),
            Member("meta-llama/Llama-3.2-3B-Instruct", 3.21, 28, 8, 128, 131072),
            Member("meta-llama/Llama-3.1-8B-Instruct", 8.03, 32, 8, 128, 131072),
            Member("meta-llama/Llama-3.3-70B-Instruct", 70.6, 80, 8, 128, 131072),
            Member("meta-llama/Llama-3.1-405B-Instruct", 406.0, 126, 8, 128, 131072),
        ),
        note="Text tokens verified from the published tokenizer file; 3.0, 3.1, 3.2 and 3.3 share them and differ "
        "only in the names of control tokens.",
    ),
    Family(
        "Mistral v0.1–v0.2, Mixtral", LLAMA2_BPE, (32000,),
        {260: "▁▁▁▁", 272: "▁the", 415: "▁The", 28705: "▁"}, VERIFIED,
        (
            Member("mistralai/Mistral-7B-Instruct-v0.2", 7.24, 32, 8, 128, 32768),
            Member("mistralai/Mixtral-8x7B-Instruct-v0.1", 46.7, 32, 8, 128, 32768),
        ),
        fingerprint="c00b79c4b2cbcf775dbed8cb1ba6be9ed19ec7703ae27d73fef2de98b4e5e8ac",
        note=
            "The same number of ids as Llama 2, but different strings. Mistral published no small model with this "
            "vocabulary; draft with n-grams instead (ExLlama: ngram, vLLM: ngram, Slipstream: suffix).",
    ),
    Family(
        "Mistral v0.3, Large, Codestral", LLAMA2_BPE, (32768,),
        {3: "[INST]", 1040: "▁the", 1183: "▁The", 29473: "▁"}, VERIFIED,
        (
            Member("mistralai/Mistral-7B-Instruct-v0.3", 7.25, 32, 8, 128, 32768),
            Member("mistralai/Codestral-22B-v0.1", 22.2, 56, 8, 128, 32768),
            Member("mistralai/Mistral-Large-Instruct-2407", 123.0, 88, 8, 128, 131072),
        ),
        fingerprint="b9dcaccbb954771d845eb31d0b3a10a82134c1d36058e307816909d3bd8b0156",
    ),
    Family(
        "Qwen2.5", BYTE_LEVEL, (151936, 152064), {279: "Ġthe", 785: "The", 49000: "France", 151644: "<|im_start|>"},
        VERIFIED,
        (
            Member("Qwen/Qwen2.5-0.5B-Instruct", 0.494, 24, 2, 64, 32768),
            Member("Qwen/Qwen2.5-1.5B-Instruct", 1.54, 28, 2, 128, 32768),
            Member("Qwen/Qwen2.5-3B-Instruct", 3.09, 36, 2, 128, 32768),
            Member("Qwen/Qwen2.5-7B-Instruct", 7.62, 28, 4, 128, 32768),
            Member("Qwen/Qwen2.5-14B-Instruct", 14.8, 48, 8, 128, 32768),
            Member("Qwen/Qwen2.5-32B-Instruct", 32.8, 64, 8, 128, 32768),
            Member("Qwen/Qwen2.5-72B-Instruct", 72.7, 80, 8, 128, 32768),
        ),
        fingerprint="2774de8441250caa0ef0d7245bef4682908e80d1083c2b8bacc8f6f8a342e8a4",
        note="151,665 tokens; 151,936 and 152,064 rows differ only in padding. Qwen2.5-Coder and -Math share it.",
    ),
    Family(
        "Qwen3", BYTE_LEVEL, (151936,), {279: "Ġthe", 785: "The", 151644: "<|im_start|>", 151667: "<think>"},
        DOCUMENTED,
        (
            Member("Qwen/Qwen3-0.6B", 0.6, 28, 8, 128, 40960),
            Member("Qwen/Qwen3-1.7B", 1.72, 28, 8, 128, 40960),
            Member("Qwen/Qwen3-4B", 4.02, 36, 8, 128, 40960),
            Member("Qwen/Qwen3-8B", 8.19, 36, 8, 128, 40960),
            Member("Qwen/Qwen3-14B", 14.8, 40, 8, 128, 40960),
            Member("Qwen/Qwen3-32B", 32.8, 64, 8, 128, 40960),
        ),
        note="Qwen2.5's tokens plus four more (<think>, </think> and two for tools).",
    ),
    Family(
        "Gemma 2", "SentencePiece BPE with 256,000 ids", (256000,),
        {1: "<eos>", 2: "<bos>", 106: "<start_of_turn>", 107: "<end_of_turn>"}, DOCUMENTED,
        (
            Member("google/gemma-2-2b-it", 2.61, 26, 4, 256, 8192),
            Member("google/gemma-2-9b-it", 9.24, 42, 8, 256, 8192),
            Member("google/gemma-2-27b-it", 27.2, 46, 16, 128, 8192),
        ),
    ),
    Family(
        "Gemma 3", "SentencePiece BPE with 262,144 ids", (262144, 262208),
        {1: "<eos>", 2: "<bos>", 105: "<start_of_turn>", 106: "<end_of_turn>"}, DOCUMENTED,
        (
            Member("google/gemma-3-270m-it", 0.268, 18, 1, 256, 32768),
            Member("google/gemma-3-1b-it", 1.0, 26, 1, 256, 32768),
            Member("google/gemma-3-4b-it", 4.3, 34, 4, 256, 131072),
            Member("google/gemma-3-12b-it", 12.2, 48, 8, 256, 131072),
            Member("google/gemma-3-27b-it", 27.4, 62, 16, 128, 131072),
        ),
    ),
    Family(
        "Phi-3, Phi-3.5", LLAMA2_BPE, (32064,), LLAMA2_SAMPLES | {32007: "<|end|>", 32010: "<|user|>"}, DOCUMENTED,
        (
            Member("microsoft/Phi-3.5-mini-instruct", 3.82, 32, 32, 96, 131072),
            Member("microsoft/Phi-3-medium-128k-instruct", 14.0, 40, 10, 128, 131072),
        ),
        note="Llama 2's tokens plus its own control tokens.",
    ),
    Family(
        "Phi-4", BYTE_LEVEL, (100352,), {100257: "<|endoftext|>", 100264: "<|im_start|>", 100266: "<|im_sep|>"},
        DOCUMENTED,
        (Member("microsoft/phi-4", 14.7, 40, 10, 128, 16384),),
        note="Phi-4-mini has another vocabulary (200,064 ids).",
    ),
    Family(
        "DeepSeek Coder", BYTE_LEVEL, (32256,), {32013: "<｜begin▁of▁sentence｜>", 32014: "<｜end▁of▁sentence｜>"},
        DOCUMENTED,
        (
            Member("deepseek-ai/deepseek-coder-1.3b-instruct", 1.35, 24, 16, 128, 16384),
            Member("deepseek-ai/deepseek-coder-6.7b-instruct", 6.74, 32, 32, 128, 16384),
            Member("deepseek-ai/deepseek-coder-33b-instruct", 33.3, 62, 8, 128, 16384),
        ),
    ),
    Family(
        "DeepSeek R1 distilled on Qwen2.5", BYTE_LEVEL, (151936, 152064),
        {279: "Ġthe", 785: "The", 151643: "<｜end▁of▁sentence｜>", 151646: "<｜begin▁of▁sentence｜>"}, DOCUMENTED,
        (
            Member("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", 1.78, 28, 2, 128, 131072),
            Member("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", 7.62, 28, 4, 128, 131072),
            Member("deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", 14.8, 48, 8, 128, 131072),
            Member("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", 32.8, 64, 8, 128, 131072),
        ),
        note="Qwen2.5's text tokens with different control tokens.",
    ),
    Family(
        "SmolLM2", BYTE_LEVEL, (49152,), {0: "<|endoftext|>", 253: "Ġa", 260: "Ġthe", 49000: "ĠAntim"}, VERIFIED,
        (
            Member("HuggingFaceTB/SmolLM2-135M-Instruct", 0.135, 30, 3, 64, 8192),
            Member("HuggingFaceTB/SmolLM2-360M-Instruct", 0.362, 32, 5, 64, 8192),
            Member("HuggingFaceTB/SmolLM2-1.7B-Instruct", 1.71, 24, 32, 64, 8192),
        ),
        fingerprint="192c19eab93f6c1f09bea7e7e209927f2bc0174d0ab0b7253176d48705ef7f8d",
        note="The 135M model is built in: slipstream pull smollm2-135m",
    ),
)  # fmt: skip
