"""Reads a log of any size in bounded memory: its beginning, its end, and from between one line of each kind."""

from __future__ import annotations

import os
import re
import select
import stat
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path

from slipstream.parsing.log_text import plain_text, without_relays_level

KEPT = 2_500_000  # bytes kept of the beginning, of the end, and at most of what is between, some 20,000 lines each: 600
# texts are searched for in them in 2 s
SMALL = 100_000  # lines of a log that is searched quickly in any case
CHUNK = 1_000_000  # bytes read at once
MAX_LINE = 1_000  # bytes kept of a line between beginning and end
MAX_READ = 400_000_000  # bytes read from the beginning on, in 3 s; of a larger file then only the end
PIPE_WAIT_S = 5.0  # a named pipe that is silent for so long has ended
_BYTE_ORDER_MARKS = (b"\xff\xfe", b"\xfe\xff")  # UTF-16: what PowerShell writes with `>`
# A failed check of llama.cpp that is written over two lines: the end of the first one is put behind the second.
_SPLIT_CHECK = re.compile(r"(GGML_ASSERT\([^\n]{0,400}(?:&&|\|\|) *)(\n)([^\n]{0,200}\bfailed)$", re.MULTILINE)
# Numbers and hexadecimal ids make lines of one kind differ.
_SHAPE = bytes.maketrans(b"0123456789abcdef", b"0" * 16)


class Log:
    """The text of a log, and the line number of each place in it. Parts of a large log may be left out."""

    def __init__(self, text: str) -> None:
        self.num_lines = text.count("\n") + (not text.endswith("\n") and bool(text))
        self.num_skipped = 0  # bytes that were not even looked at; their lines are not counted
        self._fill([(1, text)])

    def _fill(self, parts: Iterable[tuple[int, str]]) -> None:
        """The text of the parts, each with the number of its first line."""
        texts, length = [], 0
        self._offsets, self._numbers = list[int](), list[int]()  # where parts begin, and their line numbers
        for number, part in parts:
            self._offsets.append(length)
            self._numbers.append(number)
            texts.append(plain_text(part))
            length += len(texts[-1])
        self.text = without_relays_level(_SPLIT_CHECK.sub(r"\1\3\2", "".join(texts)))

    @classmethod
    def of_parts(cls, parts: Iterable[tuple[int, bytes]], num_lines: int) -> Log:
        """From parts of a log, each with the number of its first line."""
        decoded = _searchable if num_lines > SMALL else lambda part: part.decode(errors="replace")
        log = cls("")
        log._fill((number, decoded(part)) for number, part in parts)
        log.num_lines = num_lines
        return log

    def line_number(self, at: int) -> int:
        part = bisect_right(self._offsets, at) - 1
        return self._numbers[part] + self.text.count("\n", self._offsets[part], at)


def condensed(text: str, marks: Iterable[str] = ()) -> Log:
    """A log from memory; a large one without what repeats."""
    if len(text) <= 3 * KEPT:
        return Log(text)
    whole = text.encode(errors="replace")
    rest = (whole[at : at + CHUNK] for at in range(KEPT, len(whole), CHUNK))
    return _condensed(_whole_lines(whole[:KEPT], rest), [mark.encode() for mark in marks])


def _searchable(part: bytes) -> str:
    """One byte a character: Python searches such a text several times faster. Other characters become `?`."""
    return part.decode(errors="replace").encode("latin-1", errors="replace").decode("latin-1")


def read_log(path: Path, marks: Iterable[str] = ()) -> Log:
    """Reads a file, a pipe or a device. Lines with one of `marks` are all kept. Raises OSError."""
    with open(path, "rb", buffering=0, opener=_without_waiting) as file:
        head = b"".join(_arriving(file, KEPT))
        if head.startswith(_BYTE_ORDER_MARKS):
            return Log(head.decode("utf-16", errors="replace").replace("\r\n", "\n"))
        status = os.fstat(file.fileno())
        size = status.st_size if stat.S_ISREG(status.st_mode) else 0  # a device may have no end
        rest = _rest(file, size) if len(head) >= KEPT else iter(())
        log = _condensed(_whole_lines(head, rest), [mark.encode() for mark in marks])
        log.num_skipped = _num_skipped(size)
        return log


def _num_skipped(size: int) -> int:
    """Bytes of a file between the part that is read and its end."""
    return max(0, size - MAX_READ - 2 * KEPT)


def _rest(file: FileIO, size: int) -> Iterator[bytes]:
    """What follows the head, without what lies between in a file that is too large."""
    yield from _arriving(file, MAX_READ)
    if skipped := _num_skipped(size):
        yield b"\n"
        file.seek(skipped, os.SEEK_CUR)
        yield from _arriving(file, KEPT)


def _without_waiting(path: str, flags: int) -> int:
    """Opening a named pipe would wait for the program that writes to it."""
    fd = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if hasattr(os, "set_blocking"):
        os.set_blocking(fd, True)
    return fd


def _arriving(file: FileIO, limit: int) -> Iterator[bytes]:
    """Chunks up to a limit, from any kind of file."""
    named_pipe = stat.S_ISFIFO(os.fstat(file.fileno()).st_mode) and not os.fspath(file.name).startswith("/dev/")
    while limit > 0:
        if named_pipe and not select.select([file], [], [], PIPE_WAIT_S)[0]:
            return
        chunk = file.read(min(CHUNK, limit))
        if not chunk:
            return
        limit -= len(chunk)
        yield chunk


def _whole_lines(head: bytes, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The head, then chunks, each up to the end of a line; a line longer than a chunk is cut."""
    rest = head
    for chunk in chunks:
        cut = chunk.rfind(b"\n") + 1 or len(chunk)
        yield rest + chunk[:cut]
        rest = chunk[cut:]
    if rest or not head:
        yield rest


def _condensed(chunks: Iterator[bytes], marks: list[bytes]) -> Log:
    parts = [(1, next(chunks))]
    number = 1 + parts[0][1].count(b"\n")  # of the first line that was not read yet
    middle, tail = _Middle(marks), deque[tuple[int, bytes]]()
    tail_bytes = 0
    for chunk in chunks:
        tail.append((number, chunk))
        number, tail_bytes = number + chunk.count(b"\n"), tail_bytes + len(chunk)
        if tail_bytes > KEPT + CHUNK:
            oldest = tail.popleft()
            tail_bytes -= len(oldest[1])
            middle.add(*oldest)
    last = tail[-1][1] if tail else parts[0][1]
    return Log.of_parts([*parts, *middle.lines, *tail], number - (last.endswith(b"\n") or not last))


class _Middle:
    """One line of each kind, and all lines with a mark, until there are too many."""

    def __init__(self, marks: list[bytes]) -> None:
        self.lines: list[tuple[int, bytes]] = []
        self._marks, self._kept, self._seen = marks, 0, dict[bytes, bool]()

    def add(self, number: int, chunk: bytes) -> None:
        if self._kept > KEPT:
            return
        shapes = chunk.translate(_SHAPE).split(b"\n")
        for i, (shape, line) in enumerate(zip(shapes, chunk.split(b"\n"), strict=True)):
            has_mark = self._seen.get(shape)
            if has_mark is False:
                continue
            if has_mark is None:
                self._seen[shape] = any(mark in line for mark in self._marks)
            self.lines.append((number + i, line[:MAX_LINE] + b"\n"))
            self._kept += min(len(line), MAX_LINE) + 1
