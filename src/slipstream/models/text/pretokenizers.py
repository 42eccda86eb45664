"""How text is split into words before BPE, by the names in GGUF files (`tokenizer.ggml.pre`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slipstream.errors import UnsupportedModelError

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
PUNCTUATION_AND_SPACES = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CASED_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s"
)
SLASHED_PUNCTUATION_AND_SPACES = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{PUNCTUATION_AND_SPACES}"
QWEN2 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{PUNCTUATION_AND_SPACES}"
TEKKEN = CASED_WORDS % ("", "") + rf"|\p{{N}}|{SLASHED_PUNCTUATION_AND_SPACES}"
OPTIONAL_CONTRACTION = f"{CONTRACTIONS}?"
GPT4O = (
    CASED_WORDS % (OPTIONAL_CONTRACTION, OPTIONAL_CONTRACTION) + rf"|\p{{N}}{{1,3}}|{SLASHED_PUNCTUATION_AND_SPACES}"
)
ONE_DIGIT = r"\p{N}"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """Patterns are applied one after the other; each match becomes one word."""

    patterns: tuple[str, ...]
    whole_words_first: bool = False  # a word that is a token is used whole, even if no merge leads to it
    adds_bos: bool = False  # when the file does not say
    composes: bool = False  # text is normalised to Unicode NFC first, as in the model's own tokenizer


PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    **dict.fromkeys(("default", "gpt-2", "olmo", "mpt", "jais", "phi-2"), PreTokenizer((GPT2,))),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "codeshell", "command-r", "exaone", "minerva-7b"),
        PreTokenizer((ONE_DIGIT, GPT2)),
    ),
    **dict.fromkeys(
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral"),
        PreTokenizer((LLAMA3,), whole_words_first=True, adds_bos=True),
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe"), PreTokenizer((LLAMA3,))),
    **dict.fromkeys(("qwen2", "megrez", "hunyuan"), PreTokenizer((QWEN2,), composes=True)),
    "deepseek-r1-qwen": PreTokenizer((QWEN2,), composes=True, adds_bos=True),
    "stablelm2": PreTokenizer((QWEN2,)),
    "tekken": PreTokenizer((TEKKEN,), whole_words_first=True, adds_bos=True),
    "gpt-4o": PreTokenizer((GPT4O,)),
}


def pre_tokenizer_named(name: str, path: Path) -> PreTokenizer:
    """Raises UnsupportedModelError for an unknown name: a guess would silently give wrong tokens."""
    if name not in PRE_TOKENIZERS:
        raise UnsupportedModelError(
            f"{path} uses the pre-tokenizer {name!r}; supported are {', '.join(sorted(PRE_TOKENIZERS))}. Use the "
            "safetensors version of this model, which includes its whole tokenizer."
        )
    return PRE_TOKENIZERS[name]
