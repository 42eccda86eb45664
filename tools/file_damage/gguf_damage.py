"""Damage to GGUF files: header, metadata, tensors."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

from file_damage.byte_damage import damage_bytes, flip_bits, replace_content
from file_damage.gguf_parts import (
    ARRAY,
    BOOL,
    FLOAT32,
    FLOAT64,
    INT32,
    STRING,
    UINT32,
    UINT64,
    Field,
    Gguf,
    Mark,
    Tensor,
)
from file_damage.odd_values import ODD_NUMBERS, short

_NESTING = 20_000  # more than Python's recursion limit
_TYPED_VALUES: tuple[tuple[int, Any], ...] = (
    (UINT32, 0), (UINT32, 1), (UINT32, 3), (UINT32, 2**31), (UINT32, 2**32 - 1), (INT32, -1), (UINT64, 2**63),
    (UINT64, 2**64 - 1),
    (FLOAT32, float("nan")), (FLOAT32, float("inf")), (FLOAT32, -1.0), (FLOAT32, 0.0), (FLOAT64, 1e300), (BOOL, True),
    (STRING, b""), (STRING, b"x"), (STRING, b"\xff\xfe\x00"), (STRING, b"[/bold]{x}%s\x1b[0m"), (STRING,
    b"y" * 5_000_000),
    (ARRAY, (UINT32, [])), (ARRAY, (UINT32, [4, 4])), (ARRAY, (INT32, [-1] * 3)), (ARRAY, (STRING, [b"a", b"a"])),
    (ARRAY, (UINT32, [0] * 500_000)), (ARRAY, (ARRAY, [(UINT32, [1]), (STRING, [b"b"])])),
)  # fmt: skip
_TEMPLATES = (
    b"", b"{% for %}", b"{{ messages[0]['content'] }", b"{% for i in range(10**9) %}x{% endfor %}",
    b"{{ 'x' * 10**10 }}",
    b"{{ messages | tojson }}" * 1000, b"{{ raise_exception('no') }}", b"{{ ''.__class__.__mro__ }}", b"{{ 1 / 0 }}",
    b"\xff\xfe",
    b"{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", b"no variables at all", b"{% include 'x' %}",
    b"{{ undefined_name.attribute }}",
)  # fmt: skip
_NAMES = (b"", b"x", b"\xff\xfe", b"token_embd.weight", b"a" * 64, b"b" * 70_000, b"blk.999.attn_q.weight",
b"blk.-1.ffn_up.weight",
          b"rope_freqs.weight", b"output.weight", b"name\x00with zero", b"[/bold]")  # fmt: skip


def damage_gguf(parts: Gguf, rng: random.Random) -> tuple[bytes, str]:
    damage, weight = zip(*_DAMAGE, strict=True)
    content, what = rng.choices(damage, weight)[0](parts, rng)
    if rng.random() < 0.1:  # two faults at a time, too
        content, more = damage_bytes(content, rng)
        what = f"{what}; {more}"
    return content, what


# -- bytes and numbers of the written file ----------------------------------------------------------------------------


def _bits(parts: Gguf, rng: random.Random) -> tuple[bytes, str]:
    content = parts.to_bytes()
    start, end = rng.choice(((0, 24), (24, parts.data_start), (24, parts.data_start), (parts.data_start, len(content))))
    return flip_bits(content, rng, start, end)


def _any_bytes(parts: Gguf, rng: random.Random) -> tuple[bytes, str]:
    return damage_bytes(parts.to_bytes(), rng)


def _content(parts: Gguf, rng: random.Random) -> tuple[bytes, str]:
    return replace_content(parts.to_bytes(), rng)


def _cut_at_number(parts: Gguf, rng: random.Random) -> tuple[bytes, str]:
    content = parts.to_bytes()
    mark = rng.choice(parts.marks)
    return content[: mark.start + rng.randrange(mark.size + 1)], f"cut at the {mark.what}"


def _number(parts: Gguf, rng: random.Random) -> tuple[bytes, str]:
    """A length, count, type, dimension or offset is another number."""
    content = bytearray(parts.to_bytes())
    kind = rng.choice(("length", "length", "type", "dim", "dim", "offset", "offset", "count", "version"))
    mark = rng.choice([mark for mark in parts.marks if mark.kind == kind])
    value = _other_number(content, mark, rng)
    content[mark.start : mark.start + mark.size] = value.to_bytes(mark.size, "little")
    return bytes(content), f"{mark.what} is {value}"


def _other_number(content: bytearray, mark: Mark, rng: random.Random) -> int:
    old = int.from_bytes(content[mark.start : mark.start + mark.size], "little")
    near = (old + 1, old - 1, old * 2, old // 2, old + 32, old + 8, old ^ 0xFF)
    return rng.choice((*near, *ODD_NUMBERS)) % 2 ** (8 * mark.size)


def _byte_order(parts: Gguf, rng: random.Random) -> tuple[bytes, str]:
    content = bytearray(parts.to_bytes())
    for mark in parts.marks:
        content[mark.start : mark.start + mark.size] = content[mark.start : mark.start + mark.size][::-1]
    return bytes(content), "numbers of the header in the other byte order"


# -- metadata ---------------------------------------------------------------------------------------------------------


def _wrong_type(parts: Gguf, rng: random.Random) -> tuple[bytes, str]:
    chosen = rng.choice(parts.fields)
    chosen.type, chosen.value = rng.choice(_TYPED_VALUES)
    return parts.to_bytes(), f"{chosen.key.decode()} is type {chosen.type}: {short(chosen.value)}"


def _size(parts: Gguf, rng: random.Random) -> tuple[bytes, str]:
    numbers = [each for each in parts.fields if each.type == UINT32]
    chosen = rng.choice(numbers)
    chosen.value = rng.choice((0, 1, 2, 3, 5, 31, 63, 65, 128, 401, 10_000, 2**20, 2**31 - 1, 2**31, 2**32 - 1))
    return parts.to_bytes(), f"{chosen.key.decode()} is {chosen.value}"


def _fraction(parts: Gguf, rng: random.Random) -> tuple[bytes, str]:
    chosen = rng.choice([each for each in parts.fields if each.type == FLOAT32])
    chosen.value = rng.choice((0.0, -1.0, float("nan"), float("inf"), 1e30, 1e-38, -0.0))
    return parts.to_bytes(), f"{chosen.key.decode()} is {chosen.value}"


def _missing_field(parts: Gguf, rng: random.Random) -> tuple[bytes, str]:
    chosen = parts.fields.pop(rng.randrange(len(parts.fields)))
    return parts.to_bytes(), f"{chosen.key.decode()} is missing"


def _double_field(parts: Gguf, rng: random.Random) -> tuple[bytes, str]:
    chosen = rng.choice(parts.fields)
    type_id, value = rng.choice((*_TYPED_VALUES[:18], (chosen.type, chosen.value)))
    parts.fields.insert(rng.randrange(len(parts.fields) + 1), Field(chosen.key, type_id, value))
    return parts.to_bytes(), f"{chosen.key.decode()} is there twice, once as type {type_id}: {short(value)}"


def _extra_field(parts: Gguf, rng: random.Random) -> tuple[bytes, str]:
    key = rng.choice((b"", b"x", b"k" * 70_000, b"\xff\xfe", b"general.alignment ", b"split.count", b"adapter.type",
    b"general.type",
                      b"llama.rope.scaling.type", b"llama.expert_count",
                      b"llama.attention.sliding_window"))  # fmt: skip
    type_id, value = rng.choice(_TYPED_VALUES)
    parts.fields.append(Field(key, type_id, value))
    return parts.to_bytes(), f"extra field {short(key)} of type {type_id}: {short(value)}"


def _deep_field(parts: Gguf, rng: random.Random) -> tuple[bytes, str]:
    parts.fields.append(Field(b"deep", UINT32, 0))
    content = parts.to_bytes()
    mark = next(mark for mark in parts.marks if mark.what == "type of deep")
    deep = struct.pack("<I", ARRAY) + (struct.pack("<IQ", ARRAY, 1) * _NESTING) + struct.pack("<IQI", UINT32, 1, 0)
    return content[: mark.start] + deep + content[mark.start + 8 :], f"an array nested {_NESTING} times"


def _architecture(parts: Gguf, rng: random.Random) -> tuple[bytes, str]:
    name = rng.choice(
        (
            b"",
            b"gemma3",
            b"mamba",
            b"bert",
            b"clip",
            b"no-such",
            b"LLAMA",
            b"qwen2",
            b"qwen3",
            b"phi3",
            b"deepseek2",
            b"\xff",
        )
    )
    parts.find("general.architecture").value = name
    if rng.random() < 0.5:  # with the keys that belong to it
        for each in parts.fields:
            head, dot, rest = each.key.partition(b".")
            if head in (b"llama", b"qwen2", b"qwen3"):
                each.key = name + dot + rest
    return parts.to_bytes(), f"architecture {name!r}"


def _tokens(parts: Gguf, rng: random.Random) -> tuple[bytes, str]:
    key = rng.choice(("tokens", "tokens", "token_type", "merges"))
    chosen = parts.find(f"tokenizer.ggml.{key}")
    kind, values = chosen.value
    odd: list[Any] = [b"", b"\xff\xfe", b"a", b"x y z", b"z" * 100_000] if kind == STRING else [-1, 0, 99, 2**31 - 1]
    what = rng.choice(("shorter", "longer", "one odd", "one double", "all same", "empty", "shuffled"))
    value = rng.choice(odd)
    changes: dict[str, Callable[[], list[Any]]] = {
        "shorter": lambda: values[: rng.choice((1, 3, 100, len(values) - 1))],
        "longer": lambda: values + [value] * rng.choice((1, 100, 300_000 if kind != STRING else 3000)),
        "one odd": lambda: _with(values, rng.randrange(len(values)), value),
        "one double": lambda: _with(values, rng.randrange(len(values)), rng.choice(values)),
        "all same": lambda: [values[0]] * len(values),
        "empty": lambda: [],
        "shuffled": lambda: rng.sample(values, len(values)),
    }
    chosen.value = (kind, changes[what]())
    return parts.to_bytes(), f"tokenizer.ggml.{key}: {what} ({short(value)})"


def _with(values: list[Any], place: int, value: Any) -> list[Any]:
    return [*values[:place], value, *values[place + 1 :]]


def _template(parts: Gguf, rng: random.Random) -> tuple[bytes, str]:
    text = rng.choice(_TEMPLATES)
    parts.find("tokenizer.chat_template").value = text
    return parts.to_bytes(), f"chat template {short(text)}"


# -- tensors ----------------------------------------------------------------------------------------------------------


def _missing_tensor(parts: Gguf, rng: random.Random) -> tuple[bytes, str]:
    gone = [parts.tensors.pop(rng.randrange(len(parts.tensors))) for _ in range(rng.choice((1, 1, 3)))]
    return parts.to_bytes(), f"no tensor {', '.join(each.name.decode() for each in gone)}"


def _extra_tensor(parts: Gguf, rng: random.Random) -> tuple[bytes, str]:
    like, name = rng.choice(parts.tensors), rng.choice((*_NAMES, rng.choice(parts.tensors).name))
    parts.tensors.insert(rng.randrange(len(parts.tensors) + 1), Tensor(name, like.dims, like.type, like.data))
    return parts.to_bytes(), f"one tensor more, named {short(name)}"


def _renamed_tensor(parts: Gguf, rng: random.Random) -> tuple[bytes, str]:
    chosen, name = rng.choice(parts.tensors), rng.choice((*_NAMES, rng.choice(parts.tensors).name))
    old, chosen.name = chosen.name, name
    return parts.to_bytes(), f"tensor {old.decode()} is named {short(name)}"


def _placed_tensor(parts: Gguf, rng: random.Random) -> tuple[bytes, str]:
    """Offsets that overlap, leave a gap, are not aligned or lie outside."""
    content = bytearray(parts.to_bytes())
    marks = [mark for mark in parts.marks if mark.kind == "offset"]
    place = rng.randrange(len(marks))
    mark, other = marks[place], rng.choice(marks)
    old = int.from_bytes(content[mark.start : mark.start + 8], "little")
    there = int.from_bytes(content[other.start : other.start + 8], "little")
    new = rng.choice((there, old + 32, old + 1, old + 4, max(old - 32, 0), old + 4096, len(content), 2**40)) % 2**64
    content[mark.start : mark.start + 8] = new.to_bytes(8, "little")
    return bytes(content), f"{mark.what} is {new}, not {old}"


def _gap(parts: Gguf, rng: random.Random) -> tuple[bytes, str]:
    """All tensors from one on lie further back, with bytes between that no tensor has."""
    start, size = rng.randrange(len(parts.tensors)), rng.choice((32, 4096))
    data, place = bytearray(), 0
    for i, each in enumerate(parts.tensors):
        place += size if i == start else 0
        each.offset = place
        data += bytes(place - len(data)) + each.data
        place += len(each.data) + -len(each.data) % 32
    return parts.to_bytes() + bytes(data), f"a gap of {size} bytes before tensor {start}"


def _shape(parts: Gguf, rng: random.Random) -> tuple[bytes, str]:
    chosen = rng.choice(parts.tensors)
    old, total = list(chosen.dims), 1
    for size in old:
        total *= size
    chosen.dims = rng.choice((old[::-1], [*old, 1], [1, *old], [total], [total // 2, 2], [], [0], [*old, 0], [2**32,
    2**32],
                              [2**63, 2], [1] * 5, [*old[:-1], old[-1] - 1], [*old[:-1], old[-1] + 1]))  # fmt: skip
    return parts.to_bytes(), f"{chosen.name.decode()} has shape {chosen.dims}, not {old}"


def _storage(parts: Gguf, rng: random.Random) -> tuple[bytes, str]:
    chosen = rng.choice(parts.tensors)
    old, chosen.type = chosen.type, rng.choice((0, 1, 2, 4, 5, 8, 12, 14, 16, 24, 26, 30, 31, 39, 99, 2**31, 2**32 - 1))
    if rng.random() < 0.3:
        chosen.data = chosen.data[: rng.choice((0, len(chosen.data) // 2, len(chosen.data) // 4 * 3))]
    return parts.to_bytes(), f"{chosen.name.decode()} has type {chosen.type}, not {old}, and {len(chosen.data)} bytes"


def _not_finite(parts: Gguf, rng: random.Random) -> tuple[bytes, str]:
    """Q8_0 has an f16 factor at the start of each block of 34 bytes; F16 and F32 are plain."""
    chosen = rng.choice(parts.tensors)
    step, form = {0: (4, "<f"), 1: (2, "<e"), 8: (34, "<e")}[chosen.type]
    value, data = rng.choice((float("nan"), float("inf"), float("-inf"))), bytearray(chosen.data)
    count = rng.choice((1, 1, 10, len(data) // step))
    for place in rng.sample(range(len(data) // step), min(count, len(data) // step)):
        struct.pack_into(form, data, place * step, value)
    chosen.data = bytes(data)
    return parts.to_bytes(), f"{count} weights of {chosen.name.decode()} are {value}"


_DAMAGE: tuple[tuple[Callable[[Gguf, random.Random], tuple[bytes, str]], float], ...] = (
    (_bits, 5), (_any_bytes, 3), (_content, 1), (_cut_at_number, 2), (_number, 7), (_byte_order, 0.3), (_wrong_type,
    5), (_size, 4),
    (_fraction, 1), (_missing_field, 2), (_double_field, 2), (_extra_field, 2), (_deep_field, 0.5), (_architecture,
    1.5),
    (_tokens, 2.5), (_template, 1.5), (_missing_tensor, 1), (_extra_tensor, 1.5), (_renamed_tensor, 1),
    (_placed_tensor, 2),
    (_gap, 0.7), (_shape, 2), (_storage, 2), (_not_finite, 2),
)  # fmt: skip
