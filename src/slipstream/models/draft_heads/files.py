"""HeadCheckpoint: a draft head on disk, in the style of EAGLE-3. Headers are read and checked; weights stay on disk."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from slipstream.errors import DamagedModelError, ModelNotFoundError, UnsupportedModelError
from slipstream.models.checkpoint import RawTensor
from slipstream.models.draft_heads.config import HeadConfig, default_feature_layers
from slipstream.models.draft_heads.kinds import EAGLE3, kind_in_config, kind_in_tensors, refuse_other_kind
from slipstream.models.draft_heads.layouts import (
    ID_MAP,
    IN_DRAFT,
    OUTPUT_BIAS,
    canonical_names,
    head_config,
    head_tensors,
)
from slipstream.models.files import read_json
from slipstream.models.hf.checkpoint import PICKLES, stored_tensors
from slipstream.models.hf.products import Product, coded_products, part_names
from slipstream.models.hf.quantisation import scheme_from_hf
from slipstream.models.hf.safetensors_file import StoredTensor
from slipstream.models.quantised import QuantisedTensor
from slipstream.models.tensors import check_shapes

_ITEMS_AT_ONCE = 1 << 22  # limits the temporary arrays when a large tensor is checked
_INFINITE_BITS = 0x7F80  # the exponent of infinity and NaN in bfloat16


@dataclass(frozen=True, slots=True)
class HeadCheckpoint:
    """Tensor names are those of the speculators layout: `fc.weight`, `layers.0.self_attn.q_proj.weight`, …"""

    name: str  # short, for tables
    path: Path
    config: HeadConfig
    stored: dict[str, StoredTensor]
    products: dict[str, Product] = field(default_factory=dict)  # those that are stored as codes

    def __contains__(self, tensor_name: str) -> bool:
        return tensor_name in head_tensors(self.config)

    def tensor(self, tensor_name: str) -> RawTensor:
        """Reads one tensor; of floats, the array is a read-only view of the file. KeyError for an unknown name."""
        product = self.products.get(tensor_name)
        return product.tensor() if product else self.stored[tensor_name].read()

    def quantised(self, tensor_name: str) -> QuantisedTensor | None:
        """The tensor's codes, where it is stored as such."""
        product = self.products.get(tensor_name)
        return product.quantised() if product else None

    def token_ids(self) -> npt.NDArray[np.int64]:
        """The target's id of each draft id. Length draft_vocab_size."""
        ids = np.arange(self.config.draft_vocab_size, dtype=np.int64)
        return ids + self.stored[ID_MAP].read_integers() if ID_MAP in self.stored else ids

    def weight_bytes(self) -> int:
        return sum(tensor.num_bytes for tensor in self.stored.values())


class TargetSizes(Protocol):
    """What a head has to fit: a DecoderConfig, or what is known of a model that is not opened."""

    @property
    def hidden_size(self) -> int | None: ...

    @property
    def vocab_size(self) -> int | None: ...

    @property
    def num_layers(self) -> int | None: ...


def open_head(path: Path, name: str) -> HeadCheckpoint:
    """Reads and checks config, headers and id map; no weights. Raises ModelError subclasses only."""
    head = read_head(path, name)
    if problem := id_map_problem(head):
        raise DamagedModelError(f"{path} has a wrong id map: {problem}. Download or train the head again.")
    return head


def check_head_for(head: HeadCheckpoint, target: TargetSizes) -> HeadConfig:
    """The head's shape for this target, with its feature layers. Raises UnsupportedModelError if it is for another."""
    if problems := target_problems(head.config, target):
        made_for = f"It was made for {head.config.target}. " if head.config.target else ""
        raise UnsupportedModelError(
            f"{head.path} is a head for another target: {'; '.join(problems)}. {made_for}Use the head of this target, "
            "or make one: slipstream train --target TARGET."
        )
    layers = head.config.feature_layers or default_feature_layers(target.num_layers or 0)
    return replace(head.config, feature_layers=layers)


def target_problems(config: HeadConfig, target: TargetSizes) -> list[str]:
    """What of a target the head does not fit, in words. A size that is not known fits."""
    sizes = (
        ("a hidden size", config.target_hidden_size, target.hidden_size),
        ("a vocabulary", config.layer.vocab_size, target.vocab_size),
    )
    problems = [f"it needs {what} of {a}, the target has {b}" for what, a, b in sizes if b is not None and a != b]
    if target.num_layers is not None:
        layers = config.feature_layers or default_feature_layers(target.num_layers)
        if not 0 <= min(layers) <= max(layers) <= target.num_layers or len(set(layers)) != len(layers):
            shown = ", ".join(map(str, layers))
            problems.append(f"it reads the target after layers {shown}, the target has {target.num_layers}")
    return problems


def check_finite(head: HeadCheckpoint) -> None:
    """Raises DamagedModelError for NaN or infinity. Reads all weights."""
    name = nonfinite_tensor(head)
    if name is not None:
        raise DamagedModelError(
            f"{head.path}: the tensor {name!r} has NaN or infinity, so the head is damaged or its training failed. "
            "Download or train it again."
        )


def nonfinite_tensor(head: HeadCheckpoint) -> str | None:
    """The first tensor with NaN or infinity; None if all are finite. Reads all weights."""
    for name in head_tensors(head.config):
        product = head.products.get(name)
        if not (product.is_finite() if product else _is_finite(head.stored[name].read())):
            return name
    return None


def _is_finite(tensor: RawTensor) -> bool:
    flat = tensor.data.reshape(-1)
    for start in range(0, len(flat), _ITEMS_AT_ONCE):
        part = flat[start : start + _ITEMS_AT_ONCE]
        if tensor.kind == "BF16":
            whole = not np.any((part.view(np.uint16) & _INFINITE_BITS) == _INFINITE_BITS)
        else:
            whole = bool(np.isfinite(part.astype(np.float32, copy=False)).all())
        if not whole:
            return False
    return True


def read_head(path: Path, name: str) -> HeadCheckpoint:
    """Like open_head, but does not look into the id map."""
    values = _read_config(path)
    refuse_other_kind(kind_in_config(values), path)
    _refuse_no_safetensors(path)
    stored = canonical_names(stored_tensors(path), path)
    shapes = {key: tensor.shape for key, tensor in stored.items()}
    refuse_other_kind(kind_in_tensors(shapes), path)
    if kind_in_config(values) is None and kind_in_tensors(shapes) != EAGLE3:
        raise UnsupportedModelError(f"{path} has no draft head: it has no fc.weight. Expected an EAGLE-3 head.")
    config = head_config(values, stored, path / "config.json")
    scheme = scheme_from_hf(values, path / "config.json")
    products = coded_products(stored, head_tensors(config), scheme) if scheme else {}
    _check_stored(stored, products, config, path)
    return HeadCheckpoint(name, path, config, stored, products)


def _read_config(path: Path) -> dict[str, object]:
    if not (path / "config.json").is_file():
        raise ModelNotFoundError(f"{path} has no config.json, which describes the head. Copy it into the folder.")
    return read_json(path / "config.json")


def _refuse_no_safetensors(path: Path) -> None:
    if any(path.glob("*.safetensors")) or any(path.glob("*.safetensors.index.json")):
        return
    pickles = sorted(file for pattern in PICKLES for file in path.glob(pattern))
    if not pickles:
        raise ModelNotFoundError(f"{path} has no safetensors weights. Expected config.json and model.safetensors.")
    raise UnsupportedModelError(
        f"{path} has only pickled weights ({pickles[0].name}), which can run code when loaded, so they are not read. "
        'Convert them once: python -c "import torch, safetensors.torch as s; '
        f"w = torch.load('{pickles[0]}', map_location='cpu', weights_only=True); "
        f"s.save_file({{k: v.contiguous() for k, v in w.items()}}, '{path / 'model.safetensors'}')\""
    )


def _check_stored(
    stored: dict[str, StoredTensor], products: dict[str, Product], config: HeadConfig, path: Path
) -> None:
    expected = head_tensors(config)
    shapes = {name: tensor.shape for name, tensor in stored.items()}
    check_shapes(shapes | {name: product.shape for name, product in products.items()}, expected, "head", path)
    for name in expected:
        if name not in products:
            stored[name].check_float()
    _refuse_output_bias(stored, path)
    known = {*expected, ID_MAP, IN_DRAFT, OUTPUT_BIAS} | part_names(products)
    extra = [name for name in stored if name not in known]
    if extra:
        raise UnsupportedModelError(
            f"{path} has the tensor {extra[0]!r}, which Slipstream does not support in a head. Use another head."
        )


def _refuse_output_bias(stored: dict[str, StoredTensor], path: Path) -> None:
    """Heads with a bias on q, k and v are saved with one on the output too, by the layout; ours is zero."""
    if OUTPUT_BIAS not in stored:
        return
    stored[OUTPUT_BIAS].check_float()
    if np.any(stored[OUTPUT_BIAS].read().data):
        raise UnsupportedModelError(
            f"{path} has a bias on the output of the attention ({OUTPUT_BIAS}), which is not supported. Use another "
            "head."
        )


def id_map_problem(head: HeadCheckpoint) -> str | None:
    """What is wrong with the map of draft ids to the target's, in words."""
    config, stored = head.config, head.stored
    if ID_MAP not in stored:
        if config.draft_vocab_size == config.layer.vocab_size:
            return None
        return f"{config.draft_vocab_size} of the {config.layer.vocab_size} ids can be drafted, but {ID_MAP} is missing"
    for name, length in ((ID_MAP, config.draft_vocab_size), (IN_DRAFT, config.layer.vocab_size)):
        if name in stored and stored[name].shape != (length,):
            return f"{name} has the shape {stored[name].shape}, expected ({length},)"
    ids = head.token_ids()
    if ids.min() < 0 or ids.max() >= config.layer.vocab_size:
        wrong = int(ids.min()) if ids.min() < 0 else int(ids.max())
        return f"{ID_MAP} gives the id {wrong}, the target has ids below {config.layer.vocab_size}"
    in_draft = np.zeros(config.layer.vocab_size, np.bool_)
    in_draft[ids] = True
    if int(in_draft.sum()) != len(ids):
        return f"{ID_MAP} gives {len(ids) - int(in_draft.sum())} ids more than once"
    if IN_DRAFT in stored:
        differing = int((in_draft != (stored[IN_DRAFT].read_integers() != 0)).sum())
        return f"{IN_DRAFT} and {ID_MAP} disagree on {differing} ids" if differing else None
    return None
