"""Damage that knows nothing of a format: bits, lengths of files, and other content in place of the file's own."""

from __future__ import annotations

import gzip
import io
import pickle
import random
import zipfile
from collections.abc import Callable

LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d7a" * 16 + b"\nsize 2147483648\n"
HTML = b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head><body>Access is restricted.</body></html>\n"


def flip_bits(content: bytes, rng: random.Random, start: int = 0, end: int | None = None) -> tuple[bytes, str]:
    """Some bits of [start, end)."""
    end = len(content) if end is None else min(end, len(content))
    if end <= start:
        return content, "nothing to flip"
    changed, places = bytearray(content), []
    for _ in range(rng.choice((1, 1, 1, 2, 8, 64))):
        place, bit = rng.randrange(start, end), rng.randrange(8)
        changed[place] ^= 1 << bit
        places.append(f"{place}.{bit}")
    return bytes(changed), f"bits flipped at {', '.join(places[:4])}{' …' if len(places) > 4 else ''}"


def cut(content: bytes, rng: random.Random) -> tuple[bytes, str]:
    length = rng.choice((1, 3, 4, 7, 8, 9, 12, 24, len(content) - 1, len(content) - 4, rng.randrange(len(content) + 1)))
    length = max(0, min(length, len(content)))
    return content[:length], f"cut to {length} of {len(content)} bytes"


def extend(content: bytes, rng: random.Random) -> tuple[bytes, str]:
    count = rng.choice((1, 4, 31, 32, 4096, 1_000_000))
    more = rng.choice((bytes(count), b"\xff" * count, rng.randbytes(count), content[:count]))
    return content + more, f"{len(more)} bytes added at the end"


def insert(content: bytes, rng: random.Random) -> tuple[bytes, str]:
    place, count = rng.randrange(len(content) + 1), rng.choice((1, 8, 100))
    return content[:place] + rng.randbytes(count) + content[place:], f"{count} random bytes put in at {place}"


def drop(content: bytes, rng: random.Random) -> tuple[bytes, str]:
    place, count = rng.randrange(len(content) + 1), rng.choice((1, 8, 100, 4096))
    return content[:place] + content[place + count :], f"{count} bytes left out at {place}"


def zero_out(content: bytes, rng: random.Random) -> tuple[bytes, str]:
    place, count = rng.randrange(len(content) + 1), rng.choice((8, 512, 65536))
    return content[:place] + bytes(len(content[place : place + count])) + content[place + count :], (
        f"{count} bytes set to zero at {place}"
    )


def _zip(content: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"weight": [1.0]}))
        archive.writestr("archive/data/0", content[:1000])
    return out.getvalue()


OTHER_CONTENT: dict[str, Callable[[bytes], bytes]] = {
    "an empty file": lambda _: b"",
    "one byte": lambda _: b"\x00",
    "a line end": lambda _: b"\n",
    "a Git LFS pointer": lambda _: LFS_POINTER,
    "a Git LFS pointer without its size": lambda _: LFS_POINTER[:70],
    "an HTML page": lambda _: HTML,
    "a JSON error": lambda _: b'{"error": "Repository not found"}',
    "a pickle": lambda _: pickle.dumps({"weight": [1.0, 2.0]}),
    "a zip archive as torch.save writes it": _zip,
    "compressed content": lambda content: gzip.compress(content[:100_000]),
    "zeros": lambda content: bytes(len(content)),
    "only 0xff": lambda content: b"\xff" * len(content),
    "the content backwards": lambda content: content[::-1],
    "the content twice": lambda content: content * 2,
    "the content with \\r\\n for \\n": lambda content: content.replace(b"\n", b"\r\n"),
}


def replace_content(content: bytes, rng: random.Random) -> tuple[bytes, str]:
    name = rng.choice(list(OTHER_CONTENT))
    return OTHER_CONTENT[name](content), f"replaced by {name}"


BYTE_DAMAGE = (flip_bits, cut, extend, insert, drop, zero_out, replace_content)


def damage_bytes(content: bytes, rng: random.Random) -> tuple[bytes, str]:
    return rng.choice(BYTE_DAMAGE)(content, rng)
