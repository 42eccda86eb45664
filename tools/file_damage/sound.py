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

import small_models
from file_damage.gguf_parts import ARRAY, FLOAT32, INT32, STRING, UINT32, Field, Gguf, Tensor

CORPUS = Path(__file__).parents[2] / "tests" / "doctor_corpus"
# Architecture and how the matrices are stored; 32 numbers of Q8_0 are one block, which divides every row here.
GGUF_KINDS = (
    ("llama", gguf.GGMLQuantizationType.F32),
    ("qwen2", gguf.GGMLQuantizationType.Q8_0),
    ("qwen3", gguf.GGMLQuantizationType.F16),
)
tokenizer = functools.cache(small_models.byte_level_tokenizer)


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
        for name, shape in small_models.gguf_shapes(architecture).items()
    ]
    return Gguf(_gguf_fields(architecture), tensors)


def _gguf_tensor(name: str, values: np.ndarray, storage: gguf.GGMLQuantizationType) -> Tensor:
    if values.ndim == 1:
        storage = gguf.GGMLQuantizationType.F32
    data = gguf.quants.quantize(values, storage).tobytes()
    return Tensor(name.encode(), list(values.shape[::-1]), int(storage), data)


def _gguf_fields(architecture: str) -> list[Field]:
    vocabulary = small_models.gguf_vocabulary(tokenizer(), small_models.VOCAB_SIZE)
    return [
        _text("general.architecture", architecture),
        _text("general.name", "Small"),
        Field(b"general.alignment", UINT32, 32),
        *(Field(f"{architecture}.{key}".encode(), UINT32, value) for key, value in small_models.GGUF_SIZES.items()),
        Field(f"{architecture}.attention.layer_norm_rms_epsilon".encode(), FLOAT32, 1e-5),
        Field(f"{architecture}.rope.freq_base".encode(), FLOAT32, 10000.0),
        _text("tokenizer.ggml.model", "gpt2"),
        _text("tokenizer.ggml.pre", "smollm"),
        Field(b"tokenizer.ggml.tokens", ARRAY, (STRING, [t.encode() for t in vocabulary["tokens"]])),
        Field(b"tokenizer.ggml.token_type", ARRAY, (INT32, vocabulary["token_type"])),
        Field(b"tokenizer.ggml.merges", ARRAY, (STRING, [m.encode() for m in vocabulary["merges"]])),
        Field(b"tokenizer.ggml.bos_token_id", UINT32, 1),
        Field(b"tokenizer.ggml.eos_token_id", UINT32, 2),
        _text("tokenizer.chat_template", small_models.TEMPLATE),
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
    return Folder(
        shards,
        {
            "config.json": _hf_config(),
            "generation_config.json": {"bos_token_id": 1, "eos_token_id": 2, "temperature": 0.7, "top_p": 0.9},
            "tokenizer.json": json.loads(tokenizer().to_str()),
            "tokenizer_config.json": dict(small_models.TOKENIZER_CONFIG),
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
    sizes = small_models.SIZES
    hidden, inner, vocab_size = sizes["hidden_size"], sizes["intermediate_size"], sizes["vocab_size"]
    kv = small_models.HEAD_DIM * sizes["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab_size, hidden)}
    for i in range(sizes["num_hidden_layers"]):
        layer: dict[str, tuple[int, ...]] = {
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    return shapes | {"model.norm.weight": (hidden,), "lm_head.weight": (vocab_size, hidden)}


def _hf_config() -> dict[str, Any]:
    config = {
        **small_models.SIZES,
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": 1,
        "dtype": "float32",
        "eos_token_id": 2,
        "head_dim": small_models.HEAD_DIM,
        "hidden_act": "silu",
        "mlp_bias": False,
        "model_type": "llama",
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "rope_scaling": None,
        "sliding_window": None,
        "tie_word_embeddings": False,
    }
    return dict(sorted(config.items()))  # as transformers writes it


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
