"""GgufCheckpoint: a GGUF file as a checkpoint with HF tensor names and HF row order."""

from __future__ import annotations

import mmap
import re
from pathlib import Path

import numpy as np

from slipstream.errors import DamagedModelError, UnsupportedModelError
from slipstream.models.checkpoint import RawTensor
from slipstream.models.config import DecoderConfig
from slipstream.models.files import damage_in
from slipstream.models.gguf.blocks import BLOCK_KINDS
from slipstream.models.gguf.config import (
    PERMUTED_ARCHITECTURES,
    TensorFacts,
    architecture_of,
    config_from_metadata,
    refuse_split,
)
from slipstream.models.gguf.dequantise import Bytes, check_storage, read_rows, to_raw_tensor
from slipstream.models.gguf.header import GgufHeader, TensorInfo, read_header
from slipstream.models.quantised import QuantFormat, QuantisedTensor
from slipstream.models.tensors import check_config, check_tensors, check_vocabulary
from slipstream.models.text.tokenizer import Tokenizer
from slipstream.models.text.tokenizer_gguf import tokenizer_from_metadata

TOP_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ROPE_FREQS = "rope_freqs.weight"
LAYER_PATTERN = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


class GgufCheckpoint:
    """Opened by `open_gguf`; holds the file's memory map; a tensor is copied only when it is read."""

    def __init__(
        self,
        name: str,
        header: GgufHeader,
        config: DecoderConfig,
        tokenizer: Tokenizer,
        infos: dict[str, TensorInfo],
    ) -> None:
        self.name = name
        self.path = header.path
        self.config = config
        self.tokenizer = tokenizer
        self._header = header
        self._infos = infos  # by HF name

    def __contains__(self, tensor_name: str) -> bool:
        return tensor_name in self._infos

    def tensor(self, tensor_name: str) -> RawTensor:
        """Reads one tensor; the array may be a read-only view of the file. KeyError for an unknown name."""
        info = self._infos[tensor_name]
        return to_raw_tensor(self._rows(tensor_name, info), info.shape, info.type_id)

    def quant_format(self, tensor_name: str) -> QuantFormat | None:
        info = self._infos[tensor_name]
        kind = BLOCK_KINDS.get(info.type_id)
        return kind.format if kind and len(info.shape) == 2 else None

    def quantised(self, tensor_name: str) -> QuantisedTensor | None:
        info = self._infos[tensor_name]
        if self.quant_format(tensor_name) is None:
            return None
        return BLOCK_KINDS[info.type_id].tensor(self._rows(tensor_name, info))

    def fp8(self, tensor_name: str) -> None:
        return None

    def _rows(self, tensor_name: str, info: TensorInfo) -> Bytes:
        """The stored bytes of each row, in HF order."""
        rows = read_rows(self._header, info)
        num_heads = self._num_interleaved_heads(tensor_name)
        if num_heads and len(info.shape) == 1:
            rows = rows.reshape(info.shape[0], -1)  # a bias: every element is one row
        if num_heads:
            rows = half_split_rows(rows, num_heads)
        return rows

    def release_pages(self) -> None:
        if hasattr(mmap, "MADV_DONTNEED"):
            self._header.data.madvise(mmap.MADV_DONTNEED)

    def weight_bytes(self) -> int:
        return sum(check_storage(self._header, info) for info in self._infos.values())

    def _num_interleaved_heads(self, tensor_name: str) -> int:
        """The number of heads into which the rows must be regrouped; 0 if they are already in HF order."""
        if self.config.architecture not in PERMUTED_ARCHITECTURES:
            return 0
        if ".q_proj." in tensor_name:
            return self.config.num_heads
        return self.config.num_kv_heads if ".k_proj." in tensor_name else 0


def open_gguf(path: Path, name: str) -> GgufCheckpoint:
    """Reads and checks headers and vocabulary; no weights. Raises ModelError subclasses only."""
    with damage_in(path):
        header = read_header(path)
        config = decoder_config(header)
        tokenizer = tokenizer_from_metadata(header.metadata, path)
        check_vocabulary(tokenizer.vocab_size, config, path)
        return GgufCheckpoint(name, header, config, tokenizer, _by_hf_name(header))


def decoder_config(header: GgufHeader) -> DecoderConfig:
    """The decoder that a header describes, checked against its tensors. Raises ModelError subclasses only."""
    path = header.path
    with damage_in(path, "config"):
        architecture_of(path, header.metadata)
        refuse_split(path, header.metadata)
    with damage_in(path, "tensors"):
        for info in header.tensors.values():
            check_storage(header, info)
        infos = _by_hf_name(header)
        facts = _tensor_facts(header, infos)
    with damage_in(path, "config"):
        config = config_from_metadata(path, header.metadata, facts)
        check_config(config, path)
    with damage_in(path, "tensors"):
        check_tensors({name: info.shape for name, info in infos.items()}, config, path)
    return config


def _by_hf_name(header: GgufHeader) -> dict[str, TensorInfo]:
    return {hf_name(info.name): info for info in header.tensors.values() if info.name != ROPE_FREQS}


def hf_name(gguf_name: str) -> str:
    """The HF name of a GGUF tensor; a name without an HF name is returned unchanged, and refused later."""
    if match := LAYER_PATTERN.fullmatch(gguf_name):
        layer, part, kind = match.groups()
        return f"model.layers.{layer}.{LAYER_NAMES[part]}.{kind}" if part in LAYER_NAMES else gguf_name
    part, _, kind = gguf_name.rpartition(".")
    return f"{TOP_NAMES[part]}.{kind}" if part in TOP_NAMES else gguf_name


def half_split_rows(rows: Bytes, num_heads: int) -> Bytes:
    """Undoes llama.cpp's permutation: rows (x0, y0, x1, y1, …) of each head become (x0, x1, …, y0, y1, …)."""
    num_rows, row_bytes = rows.shape
    grouped = rows.reshape(num_heads, num_rows // num_heads // 2, 2, row_bytes)
    return np.ascontiguousarray(grouped.swapaxes(1, 2)).reshape(num_rows, row_bytes)


def _tensor_facts(header: GgufHeader, infos: dict[str, TensorInfo]) -> TensorFacts:
    embedding = infos.get("model.embed_tokens.weight")
    if embedding is None:
        raise DamagedModelError(f"{header.path} has no token_embd.weight. The file is incomplete; download it again.")
    return TensorFacts(
        vocab_size=embedding.shape[0],
        tied_head="lm_head.weight" not in infos,
        qkv_bias="model.layers.0.self_attn.q_proj.bias" in infos,
        rope_factors=_rope_factors(header),
    )


def _rope_factors(header: GgufHeader) -> tuple[float, ...] | None:
    info = header.tensors.get(ROPE_FREQS)
    if info is None:
        return None
    raw = to_raw_tensor(read_rows(header, info), info.shape, info.type_id)
    if raw.kind == "BF16":
        raise UnsupportedModelError(f"{header.path} stores {ROPE_FREQS} as BF16; expected F32. Convert it again.")
    return tuple(float(value) for value in raw.data.reshape(-1))
