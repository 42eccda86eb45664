"""Damage to a folder of safetensors: headers, offsets, weights, and what belongs to which shard."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from typing import Any

from file_damage.byte_damage import damage_bytes, flip_bits, replace_content
from file_damage.odd_values import ODD_NUMBERS, odd_value, short
from file_damage.sound import Folder, Shard

INDEX = "model.safetensors.index.json"
_NAMES = ("", "x", "a" * 100_000, "\ud800", "model.layers.0.self_attn.rotary_emb.inv_freq",
"model.layers.9.mlp.up_proj.weight",
          "lm_head.weight", "__metadata__", "[/bold]", "\x00")  # fmt: skip
_DTYPES = ("F16", "BF16", "F64", "I32", "I8", "U8", "BOOL", "F8_E4M3", "F4", "f32", "", "X", None, 5, [], {})


def damage_folder(folder: Folder, rng: random.Random) -> str:
    damage, weight = zip(*_DAMAGE, strict=True)
    return rng.choices(damage, weight)[0](folder, rng)


def _pick(folder: Folder, rng: random.Random) -> tuple[str, Shard]:
    return rng.choice(list(folder.shards.items()))


def _tensor(shard: Shard, rng: random.Random) -> tuple[str, dict[str, Any]]:
    return rng.choice([(name, value) for name, value in shard.entries if name != "__metadata__"])


# -- bytes ------------------------------------------------------------------------------------------------------------


def _bits(folder: Folder, rng: random.Random) -> str:
    name, shard = _pick(folder, rng)
    content = shard.to_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    start, end = rng.choice(((0, 8), (8, header), (8, header), (header, len(content))))
    folder.raw[name], what = flip_bits(content, rng, start, end)
    return f"{name}: {what}"


def _any_bytes(folder: Folder, rng: random.Random) -> str:
    name, shard = _pick(folder, rng)
    folder.raw[name], what = damage_bytes(shard.to_bytes(), rng)
    return f"{name}: {what}"


def _content(folder: Folder, rng: random.Random) -> str:
    name, shard = _pick(folder, rng)
    folder.raw[name], what = replace_content(shard.to_bytes(), rng)
    return f"{name}: {what}"


def _header_length(folder: Folder, rng: random.Random) -> str:
    name, shard = _pick(folder, rng)
    real = int.from_bytes(shard.to_bytes()[:8], "little")
    shard.head = rng.choice((*ODD_NUMBERS, real - 1, real + 1, real + 8, real - 8, 100_000_001, len(shard.to_bytes())))
    return f"{name}: header length {shard.head}, not {real}"


def _header_text(folder: Folder, rng: random.Random) -> str:
    name, shard = _pick(folder, rng)
    texts: dict[str, bytes] = {
        "nothing": b"",
        "no object": b"[]",
        "an empty object": b"{}",
        "null": b"null",
        "deep nesting": b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        "deep objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        "UTF-16": shard.to_bytes()[8:].split(b"}}")[0].decode("latin-1").encode("utf-16"),
        "a header of 30 MB": b'{"x":"' + b"y" * 30_000_000 + b'"}',
        "200,000 tensors": json.dumps(
            {f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(200_000)}
        ).encode(),
        "a huge integer": b'{"a":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,4]}}',
        "NaN": b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,4]}}',
        "a byte order mark": b"\xef\xbb\xbf" + shard.to_bytes()[8 : 8 + int.from_bytes(shard.to_bytes()[:8], "little")],
    }
    what = rng.choice(list(texts))
    shard.text = texts[what]
    return f"{name}: the header is {what}"


# -- entries of a header ----------------------------------------------------------------------------------------------


def _offsets(folder: Folder, rng: random.Random) -> str:
    file, shard = _pick(folder, rng)
    name, entry = _tensor(shard, rng)
    start, end = entry["data_offsets"]
    other = _tensor(shard, rng)[1]["data_offsets"]
    odd: tuple[Any, ...] = (
        [end, start], [start, start], [start + 4, end + 4], [start, end - 1], [start, end + 4], [-4, end - start - 4],
        [start],
        [start, end, end], [float(start), float(end)], [str(start), str(end)], None, "x", {}, [0, 2**63], [2**63,
        2**63 + end - start],
        [2**64, 2**64], [True, end], list(other), [start + 1, end + 1], [0, end - start],
    )  # fmt: skip
    entry["data_offsets"] = rng.choice(odd)
    return f"{file}: data_offsets of {name} are {entry['data_offsets']}, not {[start, end]}"


def _shape(folder: Folder, rng: random.Random) -> str:
    file, shard = _pick(folder, rng)
    name, entry = _tensor(shard, rng)
    old = entry["shape"]
    odd: tuple[Any, ...] = (
        old[::-1], [*old, 1], [], [0], [-1, *old[1:]], [2**63], [2**32, 2**32], [float(n) for n in old],
        [str(n) for n in old], None, "x",
        5, {}, [None], [old], [1] * 1000, [old[0] + 1, *old[1:]], [old[0] - 1, *old[1:]], [-old[0],
        *(-n for n in old[1:])], [True, *old],
    )  # fmt: skip
    entry["shape"] = rng.choice(odd)
    return f"{file}: shape of {name} is {short(entry['shape'])}, not {old}"


def _dtype(folder: Folder, rng: random.Random) -> str:
    file, shard = _pick(folder, rng)
    name, entry = _tensor(shard, rng)
    entry["dtype"] = rng.choice(_DTYPES)
    return f"{file}: dtype of {name} is {entry['dtype']!r}"


def _entry(folder: Folder, rng: random.Random) -> str:
    """An entry that is no object, has a key less or more, or metadata of a wrong type."""
    file, shard = _pick(folder, rng)
    place = rng.randrange(len(shard.entries))
    name, entry = shard.entries[place]
    what = rng.choice(("replaced", "key gone", "key more"))
    if what == "replaced":
        value = odd_value(rng)
        shard.entries[place] = (name, value)
        return f"{file}: {name} is {short(value)}"
    key = rng.choice(list(entry))
    if what == "key gone":
        del entry[key]
    else:
        key = rng.choice(("", "extra", "x" * 10_000))
        entry[key] = odd_value(rng)
    return f"{file}: {name}: {what}: {short(key)}"


def _name(folder: Folder, rng: random.Random) -> str:
    file, shard = _pick(folder, rng)
    place = rng.randrange(len(shard.entries))
    name, entry = shard.entries[place]
    new = rng.choice((*_NAMES, _tensor(shard, rng)[0]))
    shard.entries[place] = (new, entry)
    return f"{file}: {name} is named {short(new)}"


def _more(folder: Folder, rng: random.Random) -> str:
    """One tensor more: with bytes of its own, or with those of another one."""
    file, shard = _pick(folder, rng)
    old, entry = _tensor(shard, rng)
    name = rng.choice((*_NAMES, old))
    start, end = entry["data_offsets"]
    offsets = [start, end]
    if rng.random() < 0.5:
        offsets = [len(shard.data), len(shard.data) + end - start]
        shard.data += shard.data[start:end]
    shard.entries.append((name, entry | {"data_offsets": offsets}))
    return f"{file}: one tensor more, named {short(name)}, at {offsets}"


def _missing(folder: Folder, rng: random.Random) -> str:
    file, shard = _pick(folder, rng)
    place = rng.randrange(1, len(shard.entries))
    name, _ = shard.entries.pop(place)
    if rng.random() < 0.5:
        del folder.jsons[INDEX]["weight_map"][name]
    return (
        f"{file}: {name} is missing, {'also' if name not in folder.jsons[INDEX]['weight_map'] else 'not'} in the index"
    )


def _gap(folder: Folder, rng: random.Random) -> str:
    """Bytes that no tensor has, before one of them."""
    file, shard = _pick(folder, rng)
    name, entry = _tensor(shard, rng)
    place, size = entry["data_offsets"][0], rng.choice((4, 64))
    shard.data = shard.data[:place] + bytes(size) + shard.data[place:]
    for other, values in shard.entries:
        if other != "__metadata__" and values["data_offsets"][0] >= place:
            values["data_offsets"] = [each + size for each in values["data_offsets"]]
    return f"{file}: a gap of {size} bytes before {name}"


def _not_finite(folder: Folder, rng: random.Random) -> str:
    file, shard = _pick(folder, rng)
    name, entry = _tensor(shard, rng)
    start, end = entry["data_offsets"]
    value, count = rng.choice((float("nan"), float("inf"), float("-inf"))), rng.choice((1, 1, 10, (end - start) // 4))
    data = bytearray(shard.data)
    for place in rng.sample(range(start, end, 4), min(count, (end - start) // 4)):
        struct.pack_into("<f", data, place, value)
    shard.data = bytes(data)
    return f"{file}: {count} weights of {name} are {value}"


# -- shards and index -------------------------------------------------------------------------------------------------


def _shards(folder: Folder, rng: random.Random) -> str:
    first, second = folder.shards
    what = rng.choice(
        ("swapped", "missing", "same twice", "renamed", "one more", "a tensor in both", "no index", "pickle")
    )
    if what == "swapped":
        folder.shards[first], folder.shards[second] = folder.shards[second], folder.shards[first]
    elif what == "missing":
        del folder.shards[rng.choice((first, second))]
    elif what == "same twice":
        folder.shards[second] = folder.shards[first]
    elif what == "renamed":
        folder.shards["model-00003-of-00003.safetensors"] = folder.shards.pop(second)
    elif what == "one more":
        folder.shards[rng.choice(("model-00003-of-00003.safetensors", "model.safetensors", "extra.safetensors"))] = (
            folder.shards[first]
        )
    elif what == "no index":
        del folder.jsons[INDEX]
    elif what == "pickle":
        folder.raw["pytorch_model-00002-of-00002.bin"] = folder.shards.pop(second).data
    else:
        _copy_to_other(folder.shards[first], folder.shards[second], rng)
    return f"shards: {what}"


def _copy_to_other(source: Shard, target: Shard, rng: random.Random) -> None:
    name, entry = _tensor(source, rng)
    start, end = entry["data_offsets"]
    target.entries.append((name, entry | {"data_offsets": [len(target.data), len(target.data) + end - start]}))
    target.data += source.data[start:end]


def _index(folder: Folder, rng: random.Random) -> str:
    index = folder.jsons[INDEX]
    weight_map = index["weight_map"]
    name = rng.choice(list(weight_map))
    file = rng.choice(("", ".", "..", "/dev/zero", "../x.safetensors", "config.json",
    "model-00001-of-00002.safetensors", "x" * 5000,
                       "none.safetensors", None, 5, [], {}, "a\x00b"))  # fmt: skip
    what = rng.choice(("place", "gone", "more", "map", "size"))
    if what == "place":
        weight_map[name] = file
    elif what == "gone":
        del weight_map[name]
    elif what == "more":
        weight_map[rng.choice(_NAMES)] = file
    elif what == "map":
        index["weight_map"] = odd_value(rng)
    else:
        index["metadata"] = rng.choice(({"total_size": odd_value(rng)}, odd_value(rng)))
    return f"index: {what} {name if what in ('place', 'gone') else ''}: {short(file)}"


_DAMAGE: tuple[tuple[Callable[[Folder, random.Random], str], float], ...] = (
    (_bits, 5), (_any_bytes, 3), (_content, 2), (_header_length, 2), (_header_text, 2), (_offsets, 4), (_shape, 3),
    (_dtype, 2), (_entry, 2),
    (_name, 2), (_more, 2), (_missing, 1.5), (_gap, 1), (_not_finite, 2.5), (_shards, 3), (_index, 3),
)  # fmt: skip
