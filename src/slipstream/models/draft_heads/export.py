"""save_head: a draft head as a folder in the speculators layout, which vLLM and the speculators package load.

The folder appears complete or not at all, and only if it reads back as the same head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from slipstream.errors import ModelError, UnsupportedModelError, UsageError
from slipstream.models.checkpoint import RawTensor
from slipstream.models.draft_heads.config import HeadConfig
from slipstream.models.draft_heads.files import check_finite, open_head
from slipstream.models.draft_heads.layouts import ID_MAP, IN_DRAFT, OUTPUT_BIAS, OWN_KEY, head_tensors
from slipstream.models.export.config import READ_BY, decoder_json, write_json
from slipstream.models.export.folder import new_folder
from slipstream.models.export.weights import STORED_AS, Stored, StoredKind, TensorSpec, floats, write_tensors
from slipstream.models.hf.int8_groups import (
    CODES,
    SCALE_SUFFIX,
    codes_and_scales,
    config_json,
    is_quantisable,
    scales_shape,
)

LAYOUT_VERSION = "0.9.0"  # of the speculators package that the layout was checked with
_SIDE_FILES_BYTES = 1 << 20
HeadKind = StoredKind | Literal["int8"]  # int8: products in 8 bits, all else in 16
Contents = dict[str, tuple[TensorSpec, Callable[[], npt.NDArray[np.generic]]]]  # of the weights file


@dataclass(frozen=True, slots=True)
class HeadNotes:
    """What is saved with a head beside its weights."""

    target_architecture: str | None = None  # the target's class, such as LlamaForCausalLM
    draft_length: int = 4  # tokens that engines draft unless told otherwise
    training: Mapping[str, Any] | None = None  # facts of the training, for people: command, seed, figures
    card: str | None = None  # README.md


def save_head(
    folder: Path,
    config: HeadConfig,
    tensors: Mapping[str, RawTensor],
    token_ids: npt.NDArray[np.int64] | None = None,
    kind: HeadKind = "bf16",
    notes: HeadNotes | None = None,
) -> None:
    """Writes config.json and model.safetensors. `tensors` has all that `head_tensors(config)` names.

    `token_ids` is the target's id of each draft id; None where the head can draft all ids. Raises UsageError for a
    folder that exists or can't be written, and ModelError for a head that would not read back.
    """
    notes = notes or HeadNotes()
    contents = _contents(config, tensors, token_ids, kind)
    specs = {name: spec for name, (spec, _) in contents.items()}
    num_bytes = sum(spec.num_bytes for spec in specs.values())
    with new_folder(folder, num_bytes + _SIDE_FILES_BYTES) as scratch:
        write_json(scratch / "config.json", head_json(config, kind, notes))
        write_tensors(scratch / "model.safetensors", specs, lambda name: contents[name][1]())
        if notes.card is not None:
            (scratch / "README.md").write_text(notes.card, encoding="utf-8")
        _check_reads_back(scratch, folder, config)


def head_json(config: HeadConfig, kind: HeadKind, notes: HeadNotes) -> dict[str, Any]:
    """config.json of a head. Raises UnsupportedModelError for a layer that it can't describe."""
    layer = replace(config.layer, architecture=_layer_type(config), tied_head=False)
    own = {"trained_context": config.trained_context, "training": dict(notes.training) if notes.training else None}
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": LAYOUT_VERSION,
        "speculators_config": _speculators_json(config, notes),
        "transformer_layer_config": {
            **decoder_json(layer, layer.architecture, Path("the head")),
            "attention_bias": layer.qkv_bias,
            "mlp_bias": False,
            "use_cache": True,
        },
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "eagle_aux_hidden_state_layer_ids": list(config.feature_layers) or None,
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": config.feature_norm == "all",
        "fc_norm": config.feature_norm == "each",
        "norm_output": config.norm_output,
        "embed_requires_grad": False,
        "tie_word_embeddings": False,
        "dtype": _floats_of(kind).torch_name,
        "transformers_version": READ_BY,
        OWN_KEY: {key: value for key, value in own.items() if value is not None},
        **({"quantization_config": config_json()} if kind == "int8" else {}),
    }


def _floats_of(kind: HeadKind) -> Stored:
    """How what is not quantised is stored."""
    return STORED_AS["bf16" if kind == "int8" else kind]


def _layer_type(config: HeadConfig) -> str:
    """The layout has two families: with norms of queries and keys, and without."""
    return "qwen3" if config.layer.qk_norm else "llama"


def _speculators_json(config: HeadConfig, notes: HeadNotes) -> dict[str, Any]:
    method = {
        "proposal_type": "greedy",
        "speculative_tokens": notes.draft_length,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    architectures = [notes.target_architecture] if notes.target_architecture else []
    return {
        "algorithm": "eagle3",
        "default_proposal_method": "greedy",
        "proposal_methods": [method],
        "verifier": {"name_or_path": config.target, "architectures": architectures},
    }


def _contents(
    config: HeadConfig, tensors: Mapping[str, RawTensor], token_ids: npt.NDArray[np.int64] | None, kind: HeadKind
) -> Contents:
    if kind != "int8" and kind not in STORED_AS:
        raise UsageError(f"weights can't be stored as {kind!r}; expected {', '.join(STORED_AS)}, int8")
    shapes, stored = head_tensors(config), _floats_of(kind)
    wrong = [name for name, shape in shapes.items() if name not in tensors or tensors[name].data.shape != shape]
    if wrong:
        raise UnsupportedModelError(f"the head can't be saved: its tensor {wrong[0]!r} is missing or has another shape")
    contents: Contents = {}
    for name, shape in shapes.items():
        if kind == "int8" and is_quantisable(shape):
            contents |= _quantised(name, tensors[name])
        else:
            contents[name] = (TensorSpec(stored.dtype, shape), partial(stored.convert, tensors[name]))
    if config.layer.qkv_bias:  # in this layout, heads that have a bias have one here too
        zeros = RawTensor("F32", np.zeros(config.layer.hidden_size, np.float32))
        contents[OUTPUT_BIAS] = (TensorSpec(stored.dtype, zeros.data.shape), partial(stored.convert, zeros))
    return contents | _id_map(config, token_ids)


def _quantised(name: str, tensor: RawTensor) -> Contents:
    shape = tensor.data.shape
    return {
        name: (TensorSpec(CODES, shape), lambda: codes_and_scales(floats(tensor))[0]),
        name + SCALE_SUFFIX: (TensorSpec("F16", scales_shape(shape)), lambda: codes_and_scales(floats(tensor))[1]),
    }


def _id_map(config: HeadConfig, token_ids: npt.NDArray[np.int64] | None) -> Contents:
    """A head that can draft all ids has none."""
    vocabulary, count = config.layer.vocab_size, config.draft_vocab_size
    plain = np.arange(count, dtype=np.int64)
    if count == vocabulary and (token_ids is None or np.array_equal(token_ids, plain)):
        return {}
    if token_ids is None or count == vocabulary or token_ids.shape != (count,):
        raise UnsupportedModelError(
            f"the head can't be saved: expected {count} ids of the target, and no map where all can be drafted"
        )
    if token_ids.min() < 0 or token_ids.max() >= vocabulary:
        raise UnsupportedModelError(f"the head can't be saved: an id of the target is not below {vocabulary}")
    in_draft = np.zeros(vocabulary, np.bool_)
    in_draft[token_ids] = True
    offsets = token_ids.astype(np.int64) - plain
    return {
        ID_MAP: (TensorSpec("I64", offsets.shape), lambda: offsets),
        IN_DRAFT: (TensorSpec("BOOL", in_draft.shape), lambda: in_draft),
    }


def _check_reads_back(scratch: Path, folder: Path, config: HeadConfig) -> None:
    try:
        head = open_head(scratch, folder.name)
        check_finite(head)
    except ModelError as error:
        raise type(error)(str(error).replace(str(scratch), str(folder))) from error
    wanted = replace(config, layer=replace(config.layer, architecture=_layer_type(config), tied_head=False))
    if _without_rope(head.config) != _without_rope(wanted):
        raise UnsupportedModelError(f"{folder} can't represent the head: {wanted} would be read as {head.config}.")


def _without_rope(config: HeadConfig) -> HeadConfig:
    """Divisors of rope scaling are equal only to some digits; decoder_json compared them."""
    return replace(config, layer=replace(config.layer, rope_divisors=None))
