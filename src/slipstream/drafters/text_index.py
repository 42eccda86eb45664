"""TextIndex: where runs of tokens came before, and what followed them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

GAP = -1  # not a token: stands between two texts
_MOST_PLACES = 32  # of a run, the latest: with 64 or 256, no more drafts were right
_BITS = 21  # of a token in the number of a run
_ONE, _THREE = (1 << _BITS) - 1, (1 << 3 * _BITS) - 1


@dataclass(slots=True)
class _Places:
    """Of the tokens that followed each run of one length, linked from the latest back, as in LZ77."""

    latest: dict[int, int] = field(default_factory=dict)  # by run
    before: array[int] = field(default_factory=lambda: array("q"))  # by place: the one before it; 0: there is none

    def after(self, run: int, first: int) -> list[int]:
        """Those of a run, from the latest back to `first`, as distances from `first`."""
        found, place = list[int](), self.latest.get(run, 0)
        while place > first and len(found) < _MOST_PLACES:
            found.append(place - first)
            place = self.before[place - first]
        return found


class TextIndex:
    """Texts one after another. Adding a token takes less than a microsecond, and 120 bytes.

    Runs of one and of three tokens are looked up; longer ones are told apart by comparing what was before them.
    """

    def __init__(self, longest: int) -> None:
        """`longest`: the most tokens of a run that are compared."""
        self._longest = longest
        self._first = 0  # tokens removed so far
        self.tokens = array("i")
        self._one, self._three = _Places(), _Places()
        self._begin_text()

    def _begin_text(self) -> None:
        self.length = 0  # of the last text
        self._run = 0  # its last three tokens
        self.tokens.extend([GAP] * (self._longest + 1))
        for places in (self._one, self._three):
            places.before.extend([0] * (self._longest + 1))

    def add(self, tokens: Sequence[int]) -> None:
        """Appends to the last text."""
        one, three = self._one.latest, self._three.latest
        before_one, before_three = self._one.before, self._three.before
        run, length, place = self._run, self.length, self._first + len(self.tokens)
        for token in tokens:
            last = run & _ONE
            before_one.append(one.get(last, 0))
            before_three.append(three.get(run, 0))
            if length:
                one[last] = place
            if length > 2:
                three[run] = place
            run, length, place = (run << _BITS | token) & _THREE, length + 1, place + 1
        self.tokens.extend(tokens)
        self._run, self.length = run, length

    def add_text(self, tokens: Sequence[int]) -> None:
        self.add(tokens)
        self._begin_text()

    def remove_first(self, length: int) -> None:
        """Removes the first text, which has `length` tokens."""
        count = length + self._longest + 1
        gone, run = self.tokens[self._longest + 1 : count], 0
        self._first += count
        del self.tokens[:count], self._one.before[:count], self._three.before[:count]
        for token in gone:
            run = (run << _BITS | token) & _THREE
            for places, key in ((self._one, run & _ONE), (self._three, run)):
                if places.latest.get(key, self._first) < self._first:
                    del places.latest[key]

    def places_after(self, context: Sequence[int]) -> tuple[int, list[int]]:
        """The length of the longest runs that match the end of the context and were followed by something; and the
        places in `tokens` of what followed, the latest first."""
        longest, tokens, length, places = min(len(context), self._longest), self.tokens, 3, list[int]()
        if longest > 2:
            run = context[-3] << 2 * _BITS | context[-2] << _BITS | context[-1]
            places = self._three.after(run, self._first)
        if not places:
            length, places = 1, self._one.after(context[-1], self._first)
        while places and length < longest:
            token = context[-1 - length]
            longer = [place for place in places if tokens[place - 1 - length] == token]
            if not longer:
                break
            length, places = length + 1, longer
        return (length, places) if places else (0, [])
