"""GgufFile: a GGUF of any architecture, checked and with its tokenizer, for an engine that reads the weights itself."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slipstream.errors import DamagedModelError, UnsupportedModelError
from slipstream.models.files import damage_in
from slipstream.models.gguf.checkpoint import decoder_config
from slipstream.models.gguf.dequantise import check_storage, type_names
from slipstream.models.gguf.header import GgufHeader, read_header
from slipstream.models.sources.spec import locate
from slipstream.models.text.tokenizer import Tokenizer
from slipstream.models.text.tokenizer_gguf import tokenizer_from_metadata


@dataclass(frozen=True, slots=True)
class GgufFile:
    name: str  # short, for tables
    path: Path
    tokenizer: Tokenizer
    architecture: str
    quantisation: str  # as in its name: q4_1, q4_k_m, f16
    num_layers: int
    context_length: int  # the context it was trained for
    vectors: dict[str, str]  # types of the tensors of one dimension by their names


def open_gguf_file(spec: str | Path) -> GgufFile:
    """Reads and checks header and vocabulary; no weights. Raises ModelError subclasses."""
    place = locate(spec)
    with damage_in(place.path):
        header = read_header(place.path)
        with suppress(UnsupportedModelError):  # of other families: llama.cpp knows them
            decoder_config(header)
        architecture = header.metadata.get("general.architecture")
        return GgufFile(
            name=place.name,
            path=place.path,
            tokenizer=tokenizer_from_metadata(header.metadata, place.path),
            architecture=str(architecture),
            quantisation=_quantisation(header),
            num_layers=_count(header, f"{architecture}.block_count"),
            context_length=_count(header, f"{architecture}.context_length"),
            vectors=_vectors(header),
        )


def _count(header: GgufHeader, key: str) -> int:
    value = header.metadata.get(key)
    if not isinstance(value, int) or value < 1:
        raise DamagedModelError(f"{header.path} has {key} = {value!r}; expected a number of 1 or more.")
    return value


def _vectors(header: GgufHeader) -> dict[str, str]:
    vectors = (info for info in header.tensors.values() if len(info.shape) == 1)
    return {info.name: type_names().get(info.type_id, f"type {info.type_id}") for info in vectors}


def _quantisation(header: GgufHeader) -> str:
    """The type stated in the file; if there is none, the type of most of its bytes."""
    import gguf

    stated = header.metadata.get("general.file_type")
    names = {int(kind): kind.name for kind in gguf.LlamaFileType}
    if stated in names:
        return names[stated].removeprefix("MOSTLY_").removeprefix("ALL_").lower()
    sizes = Counter[int]()
    for info in header.tensors.values():
        sizes[info.type_id] += check_storage(header, info)
    return type_names()[max(sizes, key=sizes.__getitem__)].lower()
