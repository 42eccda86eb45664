"""Tiny models written for the tests: Hugging Face folders by transformers, GGUF files by gguf's own writer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tokenizers
import transformers
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
SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
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


def add_byte_level_metadata(
    writer: gguf.GGUFWriter, tokenizer: tokenizers.Tokenizer, rows: int, template: str | None = None
) -> None:
    """The same tokenizer as GGUF metadata, padded to the rows of the embedding as llama.cpp's converter does."""
    state = json.loads(tokenizer.to_str())
    by_id = {token_id: text for text, token_id in tokenizer.get_vocab().items()}
    tokens = [by_id.get(i, f"[PAD{i}]") for i in range(rows)]
    types = [3 if t in SPECIALS else 5 if t.startswith("[PAD") else 1 for t in tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(pair) for pair in state["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    if template is not None:
        writer.add_chat_template(template)


def save_model(folder: Path, family: str, **options: object) -> transformers.PreTrainedModel:
    """A random model of a family, saved with its tokenizer. `max_shard_size` and config values may be given."""
    shard_size = options.pop("max_shard_size", "1GB")
    config = getattr(transformers, f"{family}Config")(**(SIZES | {"head_dim": 16} | options))
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    model.save_pretrained(folder, max_shard_size=shard_size)
    save_tokenizer(folder)
    return model


def save_tokenizer(folder: Path) -> None:
    byte_level_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def gguf_tensors(architecture: str, rng: np.random.Generator, *, tied: bool = True) -> dict[str, np.ndarray]:
    """Random float32 tensors of SIZES, by GGUF name."""
    hidden, inner, kv = SIZES["hidden_size"], SIZES["intermediate_size"], SIZES["hidden_size"] // 2
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (VOCAB_SIZE, hidden),
        "output_norm.weight": (hidden,),
    }
    if not tied:
        shapes["output.weight"] = (VOCAB_SIZE, hidden)
    for i in range(SIZES["num_hidden_layers"]):
        layer = {
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
            layer |= {"attn_q_norm.weight": (16,), "attn_k_norm.weight": (16,)}
        shapes |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def write_gguf(
    path: Path,
    *,
    architecture: str = "llama",
    tensors: dict[str, np.ndarray] | None = None,
    quantisation: gguf.GGMLQuantizationType | None = None,
    metadata: dict[str, Any] | None = None,
    tokenizer: bool = True,
) -> dict[str, np.ndarray]:
    """Writes a tiny GGUF and returns its float32 tensors. `metadata` adds keys or, with None, leaves them out."""
    tensors = tensors if tensors is not None else gguf_tensors(architecture, np.random.default_rng(0))
    writer = gguf.GGUFWriter(path, architecture)
    metadata = dict(metadata or {})
    template = metadata.pop("tokenizer.chat_template", TEMPLATE)
    for key, value in _metadata(architecture, metadata).items():
        _add(writer, key, value)
    if tokenizer:
        add_byte_level_metadata(writer, byte_level_tokenizer(), tensors["token_embd.weight"].shape[0], template)
    for name, values in tensors.items():
        if quantisation is not None and values.ndim > 1:
            writer.add_tensor(name, gguf.quants.quantize(values, quantisation), raw_dtype=quantisation)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def _metadata(architecture: str, changes: dict[str, Any]) -> dict[str, Any]:
    values = {
        "block_count": SIZES["num_hidden_layers"],
        "context_length": SIZES["max_position_embeddings"],
        "embedding_length": SIZES["hidden_size"],
        "feed_forward_length": SIZES["intermediate_size"],
        "attention.head_count": SIZES["num_attention_heads"],
        "attention.head_count_kv": SIZES["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
        "rope.dimension_count": 16,
    }
    values = {f"{architecture}.{key}": value for key, value in values.items()} | changes
    return {key: value for key, value in values.items() if value is not None}


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_array(key, value)


def interleave(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """llama.cpp's permutation of rotary rows when it converts Llama models."""
    head = rows.shape[0] // num_heads
    return rows.reshape(num_heads, 2, head // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)
