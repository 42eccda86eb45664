"""Finds many texts in one log: each is looked for only where a short sign that it contains is.

There are hundreds of known texts, and `str.find` reads a log of 12 MB in some 10 ms. Reading it once for each sign, and
then looking at the places of the sign only, takes a tenth of the time.
"""

from __future__ import annotations

from bisect import bisect_left

# Parts of many known texts that are rare in lines about ordinary work, the rarest first.
SIGNS = (
    *("xception", "GGML_", "llegal", "Attribute", "nvalid", "nexpected", "imeout", "ailed", "annot", "nknown", "rror"),
    *("terminat", "nable", "xceed", "compat", "mismatch", "issing", "o such ", "ssist", "divisible", "enied", "estroy"),
    *("upport", "equire", "install", "out of", "not ", "emory", "ttribute", "quant", "assert", "CUDA", "GGUF"),
    "driver",
    *("runcat", "STATUS_", "ERROR_", "nsufficient", "ertificate", "nrecogni", "xpect", "for url", "wrong ", "isabl"),
    *(
        "n't ",
        "back to",
        "apability",
        "NaN",
        "shape",
        "ddress",
        "Errno",
        "timed out",
        "killed",
        "unable",
        " GPU",
        "device",
    ),
    *("okenizer", "too ", "raft", "must ", "pecul", "vailable", "larger", "longer", "found", "ensor", "status", "code"),
)
_AROUND = 120  # characters on each side of a sign: no known text is longer
_MANY = 200  # places from which on it is faster to look first whether the text is near any of them
_FIRST, _LAST = 2_000, 10_000  # places of a sign that are kept: a failure is at the beginning or at the end


class SignIndex:
    """`find` works like `str.find`. Of a sign that occurs very often, only the first and the last places are kept."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._places: dict[str, list[int]] = {}
        self._near: dict[str, str] = {}  # what stands around the places of a sign

    def find(self, piece: str, start: int = 0) -> int:
        sign = next((sign for sign in SIGNS if sign in piece), None)
        if sign is None:
            return self._text.find(piece, start)
        places, before = self._places_of(sign), piece.index(sign)
        if len(places) > _MANY and len(piece) <= _AROUND and piece not in self._around(sign):
            return -1
        for i in range(bisect_left(places, start + before), len(places)):
            if self._text.startswith(piece, places[i] - before):
                return places[i] - before
        return -1

    def _places_of(self, sign: str) -> list[int]:
        if sign not in self._places:
            self._places[sign] = self._first(sign)
            if len(self._places[sign]) == _FIRST:
                self._places[sign] += self._last(sign, self._places[sign][-1] + 1)
        return self._places[sign]

    def _around(self, sign: str) -> str:
        if sign not in self._near:
            parts = (self._text[max(0, at - _AROUND) : at + _AROUND] for at in self._places_of(sign))
            self._near[sign] = "\0".join(parts)
        return self._near[sign]

    def _first(self, sign: str) -> list[int]:
        found = [self._text.find(sign)]
        while found[-1] >= 0 and len(found) < _FIRST:
            found.append(self._text.find(sign, found[-1] + 1))
        return found if found[-1] >= 0 else found[:-1]

    def _last(self, sign: str, start: int) -> list[int]:
        found = [self._text.rfind(sign, start)]
        while found[-1] >= 0 and len(found) < _LAST:
            found.append(self._text.rfind(sign, start, found[-1]))
        return [at for at in reversed(found) if at >= 0]
