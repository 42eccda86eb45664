"""FolderCheckpoint: a folder in Hugging Face's layout, with config.json, a tokenizer and safetensors."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

from slipstream.errors import DamagedModelError, ModelNotFoundError, UnsupportedModelError
from slipstream.models.checkpoint import RawTensor
from slipstream.models.config import DecoderConfig
from slipstream.models.draft_heads.kinds import refuse_head
from slipstream.models.files import damage_in, read_config, read_json
from slipstream.models.hf.config import QUANTISATION, config_from_hf
from slipstream.models.hf.products import Product, coded_products, part_names, unused_biases
from slipstream.models.hf.quantisation import scheme_from_hf
from slipstream.models.hf.safetensors_file import StoredTensor, read_file_header
from slipstream.models.quantised import Fp8Tensor, QuantFormat, QuantisedTensor
from slipstream.models.tensors import check_config, check_tensors, check_vocabulary, expected_tensors
from slipstream.models.text.tokenizer import Tokenizer
from slipstream.models.text.tokenizer_hf import tokenizer_from_folder

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


class FolderCheckpoint:
    """Opened by `open_folder`; tensors are views of the memory-mapped files."""

    def __init__(
        self,
        name: str,
        path: Path,
        config: DecoderConfig,
        tokenizer: Tokenizer,
        tensors: dict[str, StoredTensor],
        products: dict[str, Product],
    ) -> None:
        self.name = name
        self.path = path
        self.config = config
        self.tokenizer = tokenizer
        self._tensors = tensors
        self._products = products  # those that are stored as codes
        self._formats: dict[str, QuantFormat | None] = {}

    def __contains__(self, tensor_name: str) -> bool:
        return tensor_name in self._tensors or tensor_name in self._products

    def tensor(self, tensor_name: str) -> RawTensor:
        """Reads one tensor; of floats, the array is a read-only view of the file. KeyError for an unknown name."""
        product = self._products.get(tensor_name)
        return product.tensor() if product else self._tensors[tensor_name].read()

    def quant_format(self, tensor_name: str) -> QuantFormat | None:
        """Reads scales and zero points, once."""
        product = self._products.get(tensor_name)
        if product is None:
            return None
        if tensor_name not in self._formats:
            self._formats[tensor_name] = product.format()
        return self._formats[tensor_name]

    def quantised(self, tensor_name: str) -> QuantisedTensor | None:
        product = self._products.get(tensor_name)
        return product.quantised() if product else None

    def fp8(self, tensor_name: str) -> Fp8Tensor | None:
        product = self._products.get(tensor_name)
        return product.fp8() if product else None

    def release_pages(self) -> None:
        """Of folders with codes, which are copied when they are packed. Floats may be used where they are."""
        if self._products and hasattr(mmap, "MADV_DONTNEED"):
            for data in {id(tensor.data): tensor.data for tensor in self._tensors.values()}.values():
                data.madvise(mmap.MADV_DONTNEED)

    def weight_bytes(self) -> int:
        return sum(tensor.num_bytes for tensor in self._tensors.values())


def open_folder(path: Path, name: str) -> FolderCheckpoint:
    """Reads and checks config, headers and vocabulary; no weights. Raises ModelError subclasses only."""
    with damage_in(path):
        return _open_folder(path, name)


def _open_folder(path: Path, name: str) -> FolderCheckpoint:
    _refuse_other_contents(path)
    with damage_in(path / "config.json", "config"):
        values = read_config(path / "config.json")
        refuse_head(values, path)
        scheme = scheme_from_hf(values, path / "config.json")
        config = config_from_hf({k: v for k, v in values.items() if k != QUANTISATION}, path / "config.json")
        check_config(config, path / "config.json")
    with damage_in(path, "tensors"):
        tensors = stored_tensors(path)
        products = coded_products(tensors, expected_tensors(config), scheme) if scheme else {}
        _check_stored(tensors, products, config, path)
    tokenizer = tokenizer_from_folder(path)
    check_vocabulary(tokenizer.vocab_size, config, path)
    return FolderCheckpoint(name, path, config, tokenizer, tensors, products)


def _check_stored(
    tensors: dict[str, StoredTensor], products: dict[str, Product], config: DecoderConfig, path: Path
) -> None:
    known = part_names(products) | unused_biases(tensors, config, products)
    shapes = {name: tensor.shape for name, tensor in tensors.items() if name not in known}
    check_tensors(shapes | {name: product.shape for name, product in products.items()}, config, path)
    for name in expected_tensors(config):
        if name not in products:
            tensors[name].check_float()


def _refuse_other_contents(path: Path) -> None:
    """The error for a folder without safetensors, which says what the folder has."""
    if _weight_files(path) or (path / INDEX).is_file():
        if (path / "config.json").is_file():
            return
        raise ModelNotFoundError(
            f"{path} has safetensors but no config.json, which describes the model. Copy it into the folder."
        )
    pickles = sorted(file.name for pattern in PICKLES for file in path.glob(pattern))
    if pickles:
        raise UnsupportedModelError(
            f"{path} has only pickled weights ({pickles[0]}), which can run code when loaded, so they are not read. "
            "Convert them to safetensors: load with transformers and call save_pretrained."
        )
    ggufs = sorted(file.name for file in path.glob("*.gguf"))
    hint = (
        (f"It has {', '.join(ggufs)}: use the path of one of them.")
        if ggufs
        else "Expected config.json and *.safetensors."
    )
    raise ModelNotFoundError(f"{path} has no safetensors weights. {hint}")


def _weight_files(path: Path) -> list[Path]:
    return sorted(path.glob("*.safetensors"))


def stored_tensors(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a folder, from one file or the files of its index. Raises ModelError subclasses only."""
    if (path / SINGLE).is_file():
        return read_file_header(path / SINGLE)
    if (path / INDEX).is_file():
        return _sharded_tensors(path, read_json(path / INDEX))
    files = _weight_files(path)
    if len(files) > 1:
        raise DamagedModelError(
            f"{path} has {len(files)} safetensors files but no {INDEX}, which says which files belong to the model. "
            "Copy it into the folder."
        )
    return read_file_header(files[0])


def _sharded_tensors(path: Path, index: dict[str, Any]) -> dict[str, StoredTensor]:
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise DamagedModelError(f"{path / INDEX} has no weight_map of tensor names to files. Download it again.")
    shards = {shard: _read_shard(path, shard) for shard in sorted(set(weight_map.values()))}
    tensors: dict[str, StoredTensor] = {}
    for name, shard in weight_map.items():
        if name not in shards[shard]:
            raise DamagedModelError(
                f"{path / INDEX} says that {name!r} is in {shard}, but it is not. The files do not belong together."
            )
        tensors[name] = shards[shard][name]
    return tensors


def _read_shard(path: Path, shard: str) -> dict[str, StoredTensor]:
    if Path(shard).name != shard:  # an index must not point outside its folder
        raise DamagedModelError(f"{path / INDEX} has the file {shard!r}; expected a file name without a folder.")
    if not (path / shard).is_file():
        raise DamagedModelError(f"{path}: the weights file {shard} of its index is missing. Download it again.")
    return read_file_header(path / shard)
