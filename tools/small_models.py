"""What the small models that tests and tools write have in common: sizes, a tokenizer, the tensors of a GGUF file."""

from __future__ import annotations

import json
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's 12345 o'clock!\n\n",
    "def main(argv):\n    return 0  # naïve façade, 日本語, 🎉 emoji\n",
    "  spaces   and\ttabs\r\nand lines\n",
] * 8
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VOCAB_SIZE = 400
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TOKENIZER_CONFIG = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "chat_template": TEMPLATE}
SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
HEAD_DIM = 16
GGUF_SIZES = {
    "block_count": SIZES["num_hidden_layers"],
    "context_length": SIZES["max_position_embeddings"],
    "embedding_length": SIZES["hidden_size"],
    "feed_forward_length": SIZES["intermediate_size"],
    "attention.head_count": SIZES["num_attention_heads"],
    "attention.head_count_kv": SIZES["num_key_value_heads"],
    "rope.dimension_count": HEAD_DIM,
}


def byte_level_tokenizer() -> tokenizers.Tokenizer:
    """A trained byte-level BPE with three control tokens at the start, like SmolLM2's."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - 8, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def gguf_vocabulary(tokenizer: tokenizers.Tokenizer, rows: int) -> dict[str, list[Any]]:
    """Lists of GGUF metadata, padded to the rows of the embedding as llama.cpp's converter does."""
    state = json.loads(tokenizer.to_str())
    by_id = {token_id: text for text, token_id in tokenizer.get_vocab().items()}
    tokens = [by_id.get(i, f"[PAD{i}]") for i in range(rows)]
    return {
        "tokens": tokens,
        "token_type": [3 if t in SPECIALS else 5 if t.startswith("[PAD") else 1 for t in tokens],
        "merges": [" ".join(pair) for pair in state["model"]["merges"]],
    }


def gguf_shapes(architecture: str, *, tied: bool = True) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors by GGUF name."""
    hidden, inner, kv = SIZES["hidden_size"], SIZES["intermediate_size"], HEAD_DIM * SIZES["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (VOCAB_SIZE, hidden),
        "output_norm.weight": (hidden,),
    }
    if not tied:
        shapes["output.weight"] = (VOCAB_SIZE, hidden)
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (hidden,),
        "ffn_norm.weight": (hidden,),
        "attn_q.weight": (hidden, hidden),
        "attn_k.weight": (kv, hidden),
        "attn_v.weight": (kv, hidden),
        "attn_output.weight": (hidden, hidden),
        "ffn_gate.weight": (inner, hidden),
        "ffn_up.weight": (inner, hidden),
        "ffn_down.weight": (hidden, inner),
    }
    if architecture == "qwen2":
        layer |= {"attn_q.bias": (hidden,), "attn_k.bias": (kv,), "attn_v.bias": (kv,)}
    if architecture == "qwen3":
        layer |= {"attn_q_norm.weight": (HEAD_DIM,), "attn_k_norm.weight": (HEAD_DIM,)}
    for i in range(SIZES["num_hidden_layers"]):
        shapes |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
    return shapes
