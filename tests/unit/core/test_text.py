"""TextAssembler: stop strings are found wherever tokens happen to end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.text import TextAssembler


class Pieces:
    """A decoder of given pieces; `tail` is what it holds back to the end."""

    def __init__(self, pieces, tail=""):
        self._pieces, self._tail = pieces, tail

    def push(self, token):
        return self._pieces[token]

    def flush(self):
        return self._tail


def run(pieces, stops, tail=""):
    """(texts released by each push, then by flush; whether it stopped)"""
    assembler = TextAssembler(Pieces(pieces, tail), stops)
    released = []
    for token in range(len(pieces)):
        released.append(assembler.push(token))
        if assembler.stopped:
            break
    return [*released, assembler.flush()], assembler.stopped


@pytest.mark.parametrize(
    ("pieces", "stops", "released", "stopped"),
    [
        (["ab", "cd"], [], ["ab", "cd", ""], False),
        (["ab", "cd"], [""], ["ab", "cd", ""], False),
        (["ab", "cSTOPd", "e"], ["STOP"], ["ab", "c", ""], True),
        (["xS", "T", "OP"], ["STOP"], ["x", "", "", ""], True),
        (["xS", "T", "y"], ["STOP"], ["x", "", "STy", ""], False),
        (["xST"], ["STOP"], ["x", "ST"], False),
        (["aa", "ab"], ["aab"], ["", "a", ""], True),
        (["a", "a", "a", "b"], ["aab"], ["", "", "a", "", ""], True),
        (["one two"], ["two", "one"], ["", ""], True),
        (["xab"], ["b", "ab"], ["x", ""], True),
        (["<", "|", "x"], ["<|end|>", "<b>"], ["", "", "<|x", ""], False),
        (["a", "b"], ["abc", "b"], ["", "a", ""], True),
        (["STOP"], ["STOP"], ["", ""], True),
    ],
)
def test_text_is_released_up_to_the_stop_and_held_where_one_may_begin(pieces, stops, released, stopped):
    assert run(pieces, stops) == (released, stopped)


def test_flush_adds_what_the_decoder_held():
    assert run(["ab"], [], tail="é") == (["ab", "é"], False)
    assert run(["xST"], ["STOP"], tail="?") == (["x", "ST?"], False)


def test_nothing_comes_after_a_stop_not_even_the_decoders_rest():
    assert run(["aSTOP"], ["STOP"], tail="late") == (["a", ""], True)


def naive(pieces, stops):
    """All text so far searched again after every token."""
    text = ""
    for piece in pieces:
        text += piece
        found = [text.find(stop) for stop in stops if stop and stop in text]
        if found:
            return text[: min(found)], True
    return text, False


PIECES = st.lists(st.text("ab", max_size=4), max_size=12)
STOPS = st.lists(st.text("ab", max_size=5), max_size=3)


@given(PIECES, STOPS)
def test_released_text_is_what_a_naive_search_leaves(pieces, stops):
    released, stopped = run(pieces, stops)
    assert ("".join(released), stopped) == naive(pieces, stops)


@given(PIECES, STOPS)
def test_text_is_never_held_longer_than_a_stop_string_could_need(pieces, stops):
    assembler = TextAssembler(Pieces(pieces), stops)
    longest = max((len(stop) for stop in stops), default=0)
    seen = released = 0
    for token, piece in enumerate(pieces):
        seen += len(piece)
        released += len(assembler.push(token))
        if assembler.stopped:
            break
        assert seen - released <= max(longest - 1, 0)
