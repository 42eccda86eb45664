"""A GGUF file as parts that can be edited one by one, also into what no writer would write."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, FLOAT64 = 4, 5, 6, 7, 8, 9, 10, 12
_FORMATS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    UINT32: "I",
    INT32: "i",
    FLOAT32: "f",
    BOOL: "?",
    UINT64: "Q",
    11: "q",
    12: "d",
}


@dataclass
class Field:
    """`value` of an array is (type of its elements, list of elements)."""

    key: bytes
    type: int
    value: Any


@dataclass
class Tensor:
    """`offset` None: behind the tensor before it, aligned."""

    name: bytes
    dims: list[int]
    type: int
    data: bytes
    offset: int | None = None


@dataclass(frozen=True)
class Mark:
    """Where a number stands in the written file: what damages lengths and types looks here."""

    kind: str  # length, type, dim, offset, count, version
    start: int
    size: int
    what: str


@dataclass
class Gguf:
    fields: list[Field]
    tensors: list[Tensor]
    alignment: int = 32
    magic: bytes = b"GGUF"
    version: int = 3
    marks: list[Mark] = field(default_factory=list)
    data_start: int = 0

    def find(self, key: str) -> Field:
        return next(each for each in self.fields if each.key == key.encode())

    def to_bytes(self) -> bytes:
        """The file. Fills in `marks` and `data_start`."""
        return _Writer(self).write()


class _Writer:
    def __init__(self, parts: Gguf) -> None:
        self.parts, self.out, self.marks = parts, bytearray(), list[Mark]()

    def write(self) -> bytes:
        parts = self.parts
        self.out += parts.magic
        self._number("version", parts.version, "I", "version")
        self._number("count", len(parts.tensors), "Q", "number of tensors")
        self._number("count", len(parts.fields), "Q", "number of metadata fields")
        for each in parts.fields:
            self._string(each.key, f"key {each.key[:40]!r}")
            self._value(each.type, each.value, each.key[:40].decode(errors="replace"))
        data = self._tensors()
        self.out += bytes(-len(self.out) % parts.alignment)
        parts.data_start, parts.marks = len(self.out), self.marks
        return bytes(self.out + data)

    def _number(self, kind: str, value: int, form: str, what: str) -> None:
        packed = struct.pack("<" + form, value)
        self.marks.append(Mark(kind, len(self.out), len(packed), what))
        self.out += packed

    def _string(self, text: bytes, what: str) -> None:
        self._number("length", len(text), "Q", f"length of {what}")
        self.out += text

    def _value(self, type_id: int, value: Any, what: str) -> None:
        self._number("type", type_id, "I", f"type of {what}")
        if type_id == ARRAY:
            self._array(value, what)
        else:
            self._element(type_id, value, what)

    def _array(self, value: tuple[int, list[Any]], what: str) -> None:
        inner, elements = value
        self._number("type", inner, "I", f"type of the elements of {what}")
        self._number("length", len(elements), "Q", f"number of elements of {what}")
        for each in elements:
            self._element(inner, each, f"an element of {what}")

    def _element(self, type_id: int, value: Any, what: str) -> None:
        if type_id == ARRAY:  # arrays of arrays: the next head is written without its own type
            self._array(value, what)
        elif type_id == STRING:
            self._string(value, what)
        else:
            self.out += struct.pack("<" + _FORMATS[type_id], value)

    def _tensors(self) -> bytes:
        data = bytearray()
        for each in self.parts.tensors:
            name = each.name[:40].decode(errors="replace")
            self._string(each.name, f"the name of tensor {name}")
            self._number("dim", len(each.dims), "I", f"number of dimensions of {name}")
            for size in each.dims:
                self._number("dim", size, "Q", f"a dimension of {name}")
            self._number("type", each.type, "I", f"type of tensor {name}")
            offset = len(data) if each.offset is None else each.offset
            self._number("offset", offset, "Q", f"offset of {name}")
            if each.offset is None:
                data += each.data + bytes(-len(each.data) % self.parts.alignment)
        return bytes(data)
