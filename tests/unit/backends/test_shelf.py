"""What is kept of closed streams beside llama.cpp's cache. Needs no llama-cpp-python."""

from __future__ import annotations

import ctypes

from slipstream.backends.llamacpp.shelf import Shelf, Shelved


def shelved(text: str) -> Shelved:
    return Shelved([ord(c) for c in text], (ctypes.c_uint8 * 1)())


def filled(*texts: str, max_prompts: int = 9, max_tokens: int = 99, as_a_whole: bool = False) -> Shelf:
    shelf = Shelf(max_prompts, max_tokens, as_a_whole)
    for text in texts:
        shelf.put(shelved(text))
    return shelf


def found(shelf: Shelf, text: str, longer_than: int = 0) -> str | None:
    prompt = shelf.find([ord(c) for c in text], longer_than)
    return "".join(map(chr, prompt.tokens)) if prompt else None


def test_the_one_with_the_longest_beginning_is_found_and_stays() -> None:
    shelf = filled("abxx", "abcx", "xyz")
    assert found(shelf, "abcd") == found(shelf, "abcd") == "abcx"
    assert found(shelf, "abx") == "abxx"
    assert found(shelf, "zzz") is None
    assert len(shelf) == 3


def test_what_was_found_is_the_latest() -> None:
    shelf = filled("aa", "bb", max_prompts=2)
    assert found(shelf, "aa") == "aa"
    shelf.put(shelved("cc"))
    assert (found(shelf, "aa"), found(shelf, "bb")) == ("aa", None)


def test_nothing_is_found_that_is_no_longer_than_what_is_there() -> None:
    shelf = filled("abc")
    assert found(shelf, "abd", longer_than=2) is None
    assert found(shelf, "abd", longer_than=1) == "abc"


def test_what_another_covers_is_not_kept_twice() -> None:
    shelf = filled("ab", "abcd", "b")
    assert len(shelf) == 2
    assert shelf.covers([ord("a"), ord("b"), ord("c")])
    assert not shelf.covers([ord("a"), ord("c")])
    assert found(shelf, "ab") == "abcd"


def test_a_state_that_is_of_use_as_a_whole_is_never_cut() -> None:
    shelf = filled("ab", "abcd", as_a_whole=True)
    assert len(shelf) == 2
    assert not shelf.covers([ord("a")])
    assert found(shelf, "abc") == "ab"
    assert found(shelf, "ax") is None


def test_the_oldest_goes_first() -> None:
    assert found(filled("aa", "bb", "cc", max_prompts=2), "aa") is None
    shelf = filled("aaaa", "bbb", "ccc", max_tokens=7)
    assert (found(shelf, "aaaa"), found(shelf, "bbb"), found(shelf, "ccc")) == (None, "bbb", "ccc")
    assert len(filled("a" * 8, max_tokens=7)) == 0
