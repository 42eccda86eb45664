"""The sound files that damage starts from: small models, configurations of each engine, and logs."""

from __future__ import annotations

import copy
import functools
import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from file_damage.gguf_parts import ARRAY, FLOAT32, INT32, STRING, UINT32, Field, Gguf, Tensor

CORPUS = Path(__file__).parents[2] / "tests" / "doctor_corpus"
VOCAB, HIDDEN, INNER, HEADS, KV_HEADS, LAYERS, CONTEXT = 400, 64, 96, 4, 2, 2, 128
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_TEXT = [
    "The quick brown fox jumps over the lazy dog. It's 12345 o'clock!\n\n",
    "def main(argv):\n    return 0  # naïve façade, 日本語, 🎉 emoji\n",
    "  spaces   and\ttabs\r\nand lines\n",
] * 8
# Architecture and how the matrices are stored; 32 numbers of Q8_0 are one block, which divides every row here.
GGUF_KINDS = (
    ("llama", gguf.GGMLQuantizationType.F32),
    ("qwen2", gguf.GGMLQuantizationType.Q8_0),
    ("qwen3", gguf.GGMLQuantizationType.F16),
)


@functools.cache
def tokenizer() -> tokenizers.Tokenizer:
    """A trained byte-level BPE with three control tokens at the start."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        _TEXT,
        trainers.BpeTrainer(
            vocab_size=VOCAB - 8, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False
        ),
    )
    return made


# -- GGUF -------------------------------------------------------------------------------------------------------------


def sound_gguf(kind: int) -> Gguf:
    """A copy that may be edited; `kind` is an index of GGUF_KINDS."""
    return copy.deepcopy(_sound_gguf(kind))


@functools.cache
def _sound_gguf(kind: int) -> Gguf:
    architecture, storage = GGUF_KINDS[kind]
    rng = np.random.default_rng(0)
    tensors = [
        _gguf_tensor(name, 0.3 * rng.standard_normal(shape).astype(np.float32) + ("norm" in name), storage)
        for name, shape in _gguf_shapes(architecture).items()
    ]
    return Gguf(_gguf_fields(architecture), tensors)


def _gguf_tensor(name: str, values: np.ndarray, storage: gguf.GGMLQuantizationType) -> Tensor:
    if values.ndim == 1:
        storage = gguf.GGMLQuantizationType.F32
    data = gguf.quants.quantize(values, storage).tobytes()
    return Tensor(name.encode(), list(values.shape[::-1]), int(storage), data)


def _gguf_shapes(architecture: str) -> dict[str, tuple[int, ...]]:
    kv = HIDDEN // HEADS * KV_HEADS
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,)}
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (HIDDEN,),
        "ffn_norm.weight": (HIDDEN,),
        "attn_q.weight": (HIDDEN, HIDDEN),
        "attn_k.weight": (kv, HIDDEN),
        "attn_v.weight": (kv, HIDDEN),
        "attn_output.weight": (HIDDEN, HIDDEN),
        "ffn_gate.weight": (INNER, HIDDEN),
        "ffn_up.weight": (INNER, HIDDEN),
        "ffn_down.weight": (HIDDEN, INNER),
    }
    if architecture == "qwen2":
        layer |= {"attn_q.bias": (HIDDEN,), "attn_k.bias": (kv,), "attn_v.bias": (kv,)}
    if architecture == "qwen3":
        layer |= {"attn_q_norm.weight": (16,), "attn_k_norm.weight": (16,)}
    for i in range(LAYERS):
        shapes |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


def _gguf_fields(architecture: str) -> list[Field]:
    state = json.loads(tokenizer().to_str())
    by_id = {token_id: text for text, token_id in tokenizer().get_vocab().items()}
    tokens = [by_id.get(i, f"[PAD{i}]") for i in range(VOCAB)]
    types = [3 if t in SPECIALS else 5 if t.startswith("[PAD") else 1 for t in tokens]
    merges = [" ".join(pair) for pair in state["model"]["merges"]]
    sizes = {
        "block_count": LAYERS,
        "context_length": CONTEXT,
        "embedding_length": HIDDEN,
        "feed_forward_length": INNER,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "rope.dimension_count": HIDDEN // HEADS,
    }
    return [
        _text("general.architecture", architecture),
        _text("general.name", "Small"),
        Field(b"general.alignment", UINT32, 32),
        *(Field(f"{architecture}.{key}".encode(), UINT32, value) for key, value in sizes.items()),
        Field(f"{architecture}.attention.layer_norm_rms_epsilon".encode(), FLOAT32, 1e-5),
        Field(f"{architecture}.rope.freq_base".encode(), FLOAT32, 10000.0),
        _text("tokenizer.ggml.model", "gpt2"),
        _text("tokenizer.ggml.pre", "smollm"),
        Field(b"tokenizer.ggml.tokens", ARRAY, (STRING, [t.encode() for t in tokens])),
        Field(b"tokenizer.ggml.token_type", ARRAY, (INT32, types)),
        Field(b"tokenizer.ggml.merges", ARRAY, (STRING, [m.encode() for m in merges])),
        Field(b"tokenizer.ggml.bos_token_id", UINT32, 1),
        Field(b"tokenizer.ggml.eos_token_id", UINT32, 2),
        _text("tokenizer.chat_template", TEMPLATE),
    ]


def _text(key: str, value: str) -> Field:
    return Field(key.encode(), STRING, value.encode())


# -- safetensors ------------------------------------------------------------------------------------------------------


@dataclass
class Shard:
    """`entries` is a list, so that a name can be there twice. `head` replaces the length that the file states."""

    entries: list[tuple[str, Any]]
    data: bytes
    tail: bytes = b""
    head: int | None = None
    text: bytes | None = None  # the header as it is written, if it is not what `entries` give

    def to_bytes(self) -> bytes:
        text = self.text
        if text is None:
            pairs = (f"{json.dumps(name)}:{json.dumps(value)}" for name, value in self.entries)
            text = ("{" + ",".join(pairs) + "}").encode(errors="surrogatepass")
            text += b" " * (-len(text) % 8)
        length = len(text) if self.head is None else self.head
        return struct.pack("<Q", length % 2**64) + text + self.data + self.tail


@dataclass
class Folder:
    """A model folder: two shards by name, and JSON files by name."""

    shards: dict[str, Shard]
    jsons: dict[str, Any]
    raw: dict[str, bytes] = field(default_factory=dict)  # written last: replaces or adds files

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        files = {name: shard.to_bytes() for name, shard in self.shards.items()}
        files |= {name: json.dumps(value).encode() for name, value in self.jsons.items()} | self.raw
        for name, content in files.items():
            (folder / name).write_bytes(content)


def sound_folder() -> Folder:
    """A copy that may be edited."""
    return copy.deepcopy(_sound_folder())


@functools.cache
def _sound_folder() -> Folder:
    rng, shapes = np.random.default_rng(0), _hf_shapes()
    names = list(shapes)
    parts = [names[: len(names) // 2], names[len(names) // 2 :]]
    files = [f"model-{i:05}-of-00002.safetensors" for i in (1, 2)]
    shards = {file: _shard({n: shapes[n] for n in part}, rng) for file, part in zip(files, parts, strict=True)}
    weight_map = {name: file for file, part in zip(files, parts, strict=True) for name in part}
    total = sum(len(shard.data) for shard in shards.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    settings = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    return Folder(
        shards,
        {
            "config.json": _hf_config(),
            "generation_config.json": {"bos_token_id": 1, "eos_token_id": 2, "temperature": 0.7, "top_p": 0.9},
            "tokenizer.json": json.loads(tokenizer().to_str()),
            "tokenizer_config.json": settings,
            "model.safetensors.index.json": index,
        },
    )


def _shard(shapes: dict[str, tuple[int, ...]], rng: np.random.Generator) -> Shard:
    entries: list[tuple[str, Any]] = [("__metadata__", {"format": "pt"})]
    data = bytearray()
    for name, shape in shapes.items():
        values = (0.3 * rng.standard_normal(shape) + ("norm" in name)).astype(np.float32).tobytes()
        offsets = [len(data), len(data) + len(values)]
        entries.append((name, {"dtype": "F32", "shape": list(shape), "data_offsets": offsets}))
        data += values
    return Shard(entries, bytes(data))


def _hf_shapes() -> dict[str, tuple[int, ...]]:
    kv = HIDDEN // HEADS * KV_HEADS
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN)}
    for i in range(LAYERS):
        layer: dict[str, tuple[int, ...]] = {
            "input_layernorm": (HIDDEN,),
            "post_attention_layernorm": (HIDDEN,),
            "self_attn.q_proj": (HIDDEN, HIDDEN),
            "self_attn.k_proj": (kv, HIDDEN),
            "self_attn.v_proj": (kv, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HIDDEN),
            "mlp.gate_proj": (INNER, HIDDEN),
            "mlp.up_proj": (INNER, HIDDEN),
            "mlp.down_proj": (HIDDEN, INNER),
        }
        shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    return shapes | {"model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCAB, HIDDEN)}


def _hf_config() -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": 1,
        "dtype": "float32",
        "eos_token_id": 2,
        "head_dim": HIDDEN // HEADS,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "max_position_embeddings": CONTEXT,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "rope_scaling": None,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "vocab_size": VOCAB,
    }


# -- configurations and logs ------------------------------------------------------------------------------------------

# (engine, name of the file, its content): objects are written as JSON or YAML by the ending of the name.
CONFIGS: tuple[tuple[str, str, Any], ...] = (
    ("vllm", "spec.json", {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}),
    (
        "vllm",
        "serve.json",
        {
            "model": "org/name",
            "max_model_len": 4096,
            "speculative_config": {"model": "org/draft", "num_speculative_tokens": 3},
        },
    ),
    ("sglang", "args.json", {"model_path": "org/name", "speculative_algorithm": "EAGLE", "speculative_num_steps": 3}),
    (
        "vllm",
        "serve.yaml",
        {"model": "org/name", "port": 8000, "speculative-config": {"method": "ngram", "num_speculative_tokens": 5}},
    ),
    (
        "tabbyapi",
        "config.yml",
        {
            "network": {"host": "127.0.0.1", "port": 5000},
            "model": {
                "model_dir": "models",
                "model_name": "big",
                "max_seq_len": 8192,
                "cache_size": 8192,
                "gpu_split": [20, 24],
            },
            "draft_model": {"draft_model_dir": "models", "draft_model_name": "small", "draft_rope_alpha": 1.0},
        },
    ),
)
SCRIPTS: tuple[tuple[str, str, str], ...] = (
    ("vllm", "serve.sh", "#!/bin/sh\nMODEL=org/name\nvllm serve $MODEL --max-model-len 4096 \\\n  --speculative-config "
     "'{\"method\": \"ngram\", \"num_speculative_tokens\": 5}'\n"),
    ("llama-server", "serve.sh", "llama-server -m big.gguf -md small.gguf --draft-max 8 -ngl 99 -c 8192 -fa on\n"),
    ("sglang", "serve.sh", "python -m sglang.launch_server --model-path org/name --speculative-algorithm EAGLE "
     "--speculative-draft-model-path org/draft --speculative-num-steps 3\n"),
    ("ollama", "Modelfile", "FROM ./big.gguf\nPARAMETER num_ctx 8192\nTEMPLATE \"\"\"{{ .Prompt }}\"\"\"\n"),
    ("transformers", "run.py", "model.generate(**inputs, assistant_model=draft, max_new_tokens=50)\n"),
)  # fmt: skip
SETTINGS = {"model": "org/name", "drafter": "ngram", "policy": "fixed(4)"}  # slipstream.yaml
# Names that `--engine` takes; the other engines of the corpus are examined without one.
ENGINES = ("vllm", "sglang", "llama-server", "tabbyapi", "ollama", "transformers")


@functools.cache
def logs() -> tuple[tuple[str, str], ...]:
    """(engine, text) of the known part of the corpus."""
    lines = [line for name in ("failures", "healthy") for line in (CORPUS / f"{name}.jsonl").read_text().splitlines()]
    entries = [json.loads(line) for line in lines if line]
    return tuple((entry["engine"], entry["log"]) for entry in entries if entry["part"] == "known")
