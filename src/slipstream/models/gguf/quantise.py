"""Writes a model as a quantised GGUF file, tensor by tensor, with the quantisers of the `gguf` package."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from slipstream.errors import UnsupportedModelError, UsageError
from slipstream.models.checkpoint import Checkpoint
from slipstream.models.export.weights import STORED_AS
from slipstream.models.gguf.checkpoint import LAYER_NAMES, ROPE_FREQS, TOP_NAMES
from slipstream.models.gguf.config import PERMUTED_ARCHITECTURES
from slipstream.models.gguf.vocabulary import add_tokenizer, tokenizer_metadata
from slipstream.models.quantised import GROUP
from slipstream.models.tensors import expected_tensors

if TYPE_CHECKING:
    import gguf

TYPES = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0")  # those that the package can quantise to
_VOCABULARY_TYPE = "Q8_0"  # for the embedding and the head, which lose most by fewer bits
_VOCABULARY = ("model.embed_tokens.weight", "lm_head.weight")
_GGUF_NAMES = {hf: name for name, hf in TOP_NAMES.items()}
_GGUF_LAYER_NAMES = {hf: name for name, hf in LAYER_NAMES.items()}


@dataclass(frozen=True, slots=True)
class QuantisedFile:
    """What was written; of a draft head, `path` is its folder."""

    path: Path
    kind: str
    num_tensors: int
    num_bytes: int


def quantise(checkpoint: Checkpoint, path: Path, kind: str) -> QuantisedFile:
    """Raises UsageError for an unknown type or a path that exists, UnsupportedModelError for what GGUF can't hold."""
    import gguf

    if kind not in TYPES:
        raise UsageError(f"--to {kind!r}; expected {', '.join(TYPES)}")
    _check_rows(checkpoint)
    with _new_file(path) as scratch:
        writer = gguf.GGUFWriter(scratch, _architecture(checkpoint))
        _add_config(writer, checkpoint)
        writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{kind.upper()}"])
        add_tokenizer(writer, checkpoint)
        num_tensors = _write_tensors(writer, checkpoint, kind)
        writer.close()
    return QuantisedFile(path, kind, num_tensors, path.stat().st_size)


def check_quantisable(checkpoint: Checkpoint) -> None:
    """Raises UnsupportedModelError where `quantise` would, without writing anything."""
    _check_rows(checkpoint)
    if not checkpoint.path.is_file():
        tokenizer_metadata(checkpoint)


def _check_rows(checkpoint: Checkpoint) -> None:
    shapes = expected_tensors(checkpoint.config)
    narrow = next((name for name, shape in shapes.items() if len(shape) == 2 and shape[1] % GROUP), None)
    if narrow:
        raise UnsupportedModelError(
            f"{checkpoint.name}: rows of {narrow!r} have {shapes[narrow][1]} weights; quantised ones come in blocks of "
            f"{GROUP}. Use the model as it is."
        )


def _architecture(checkpoint: Checkpoint) -> str:
    """Mistral models are Llama models in GGUF."""
    architecture = checkpoint.config.architecture
    return "llama" if architecture == "mistral" else architecture


def _add_config(writer: gguf.GGUFWriter, checkpoint: Checkpoint) -> None:
    config = checkpoint.config
    writer.add_name(checkpoint.name)
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.context_length)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    if config.sliding_window is not None:
        writer.add_sliding_window(config.sliding_window)


def _write_tensors(writer: gguf.GGUFWriter, checkpoint: Checkpoint, kind: str) -> int:
    """The header first, which needs only sizes; then a tensor at a time. Returns how many there are."""
    import gguf

    types: dict[str, gguf.GGMLQuantizationType] = {}
    shapes = expected_tensors(checkpoint.config)
    divisors = checkpoint.config.rope_divisors
    if divisors is not None:
        writer.add_tensor_info(ROPE_FREQS, (len(divisors),), np.dtype(np.float32), 4 * len(divisors))
    for name, shape in shapes.items():
        if len(shape) == 1:
            writer.add_tensor_info(_gguf_name(name), shape, np.dtype(np.float32), 4 * shape[0])
            continue
        types[name] = gguf.GGMLQuantizationType[_VOCABULARY_TYPE if name in _VOCABULARY else kind.upper()]
        inputs, num_bytes = gguf.GGML_QUANT_SIZES[types[name]]
        row = shape[1] // inputs * num_bytes
        writer.add_tensor_info(_gguf_name(name), (shape[0], row), np.dtype(np.uint8), shape[0] * row, types[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    if divisors is not None:
        writer.write_tensor_data(np.array(divisors, np.float32))
    for name in shapes:
        values = _in_gguf_order(checkpoint, name)
        writer.write_tensor_data(gguf.quants.quantize(values, types[name]) if name in types else values)
    return len(shapes)


def _in_gguf_order(checkpoint: Checkpoint, name: str) -> np.ndarray:
    """As float32. Rows of rotated heads are (x0, y0, x1, y1, …) in a GGUF file of the Llama family."""
    values = np.ascontiguousarray(STORED_AS["fp32"].convert(checkpoint.tensor(name)))
    config = checkpoint.config
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}.get(name.split(".")[-2], 0)
    if not heads or _architecture(checkpoint) not in PERMUTED_ARCHITECTURES:
        return values
    grouped = values.reshape(heads, 2, len(values) // heads // 2, -1)
    return np.ascontiguousarray(grouped.swapaxes(1, 2)).reshape(values.shape)


def _gguf_name(hf_name: str) -> str:
    part, _, kind = hf_name.rpartition(".")
    if part in _GGUF_NAMES:
        return f"{_GGUF_NAMES[part]}.{kind}"
    _, _, layer, inner = part.split(".", 3)
    return f"blk.{layer}.{_GGUF_LAYER_NAMES[inner]}.{kind}"


@contextmanager
def _new_file(path: Path) -> Iterator[Path]:
    """A scratch file that becomes `path` at the end, or nothing at all."""
    if path.exists() or path.is_symlink():
        raise UsageError(f"{path} already exists; use another name, or remove it first.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, scratch = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
        os.close(handle)
        try:
            yield Path(scratch)
            Path(scratch).chmod(0o644)  # mkstemp's files are for their owner only
            Path(scratch).rename(path)
        finally:
            Path(scratch).unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(
            f"can't write {path}: {error.strerror or error}. Free some space, or use another name."
        ) from error
