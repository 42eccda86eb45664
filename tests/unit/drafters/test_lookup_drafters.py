"""ngram and suffix: what they find in the text so far, and what they remember."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import FakeModel, cycle_logits, grow, letters, make_stream
from slipstream.core.engine import Engine
from slipstream.core.stream import Limits, RequestOptions
from slipstream.drafters.ngram import NgramDrafter, NgramOptions
from slipstream.drafters.suffix import SuffixDrafter, SuffixOptions
from slipstream.drafters.text_index import TextIndex
from slipstream.errors import UsageError
from slipstream.policy import FixedPolicy


def ids(text: str) -> list[int]:
    return [ord(letter) - ord("a") for letter in text]


def text(tokens) -> str:
    return "".join(chr(ord("a") + token) for token in tokens)


def propose(drafter, prompt: str, budget: int):
    stream = make_stream(ids(prompt))
    drafter.begin(stream)
    return drafter.propose([stream], [budget])[0]


# -- ngram --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "budget", "draft"),
    [
        ("abcdxbc", 3, "dxb"),  # the only match
        ("abxcbydb", 2, "yd"),  # of two matches of one letter, the later
        ("abcxzbcyqabc", 2, "xz"),  # a longer match beats a later one
        ("abcd", 4, ""),  # nothing repeats
        ("a", 4, ""),
        ("abab", 5, "ababa"),  # the match overlaps the end: it goes on repeating
        ("zzz", 4, "zzzz"),
        ("xyzxy", 0, ""),
    ],
)
def test_ngram_proposes_what_followed_the_longest_and_latest_match(prompt, budget, draft):
    assert text(propose(NgramDrafter(), prompt, budget).tokens) == draft


@pytest.mark.parametrize(
    ("options", "draft"),
    [
        (NgramOptions(min_n=1, max_n=1), "y"),
        (NgramOptions(min_n=1, max_n=2), "y"),
        (NgramOptions(min_n=1, max_n=3), "x"),
        (NgramOptions(min_n=3, max_n=5), "x"),
        (NgramOptions(min_n=4, max_n=5), ""),
    ],
)
def test_ngram_looks_for_matches_of_the_lengths_it_was_given(options, draft):
    assert text(propose(NgramDrafter(options), "abcxzbcyqabc", 1).tokens) == draft


def test_ngram_is_surer_of_a_longer_match():
    short = propose(NgramDrafter(), "abxcb", 1).confidence[0]
    long = propose(NgramDrafter(), "qwerxqwer", 1).confidence[0]
    assert 0 < short < long < 1


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=30), st.integers(1, 8), st.lists(st.integers(1, 6), max_size=10)
)
def test_ngram_kept_up_step_by_step_finds_what_a_search_finds(tokens, budget, steps):
    options = NgramOptions(min_n=1, max_n=4)
    drafter, stream = NgramDrafter(options), make_stream(tokens[:1])
    drafter.begin(stream)
    for step in [*steps, len(tokens)]:
        grow(stream, tokens[len(stream.tokens) : len(stream.tokens) + step])
        drafted = list(drafter.propose([stream], [budget])[0].tokens)
        assert drafted == searched(stream.tokens, budget, options)


def searched(tokens, budget, options):
    for n in range(min(options.max_n, len(tokens) - 1), options.min_n - 1, -1):
        ends = [end for end in range(n, len(tokens)) if tokens[end - n : end] == tokens[-n:]]
        if ends:
            found = list(tokens)
            for i in range(budget):
                found.append(found[ends[-1] + i])
            return found[len(tokens) :]
    return []


@pytest.mark.parametrize(("min_n", "max_n"), [(0, 3), (4, 3), (-1, -1)])
def test_ngram_refuses_impossible_lengths(min_n, max_n):
    with pytest.raises(UsageError, match="expected 1 <= min_n <= max_n"):
        NgramOptions(min_n=min_n, max_n=max_n)


@pytest.mark.parametrize("make", [NgramDrafter, SuffixDrafter])
def test_streams_of_one_drafter_do_not_mix(make):
    drafter = make()
    streams = [make_stream(ids("abcab")), make_stream(ids("xyzxy")), make_stream(ids("q"))]
    for stream in streams:
        drafter.begin(stream)
    drafts = [text(tree.tokens) for tree in drafter.propose(streams, [1, 1, 1])]
    assert drafts == ["c", "z", ""]
    for stream in streams:
        drafter.end(stream)
        drafter.end(stream)  # twice is harmless


# -- suffix -------------------------------------------------------------------------------------------------------


TEXTS = st.lists(st.lists(st.integers(0, 2), max_size=12), min_size=1, max_size=3)  # few enough to look at all places


def followers(texts, context, longest):
    """Of the longest runs that end as the context does: their length, and what followed them, the latest first."""
    for length in range(min(longest, len(context)), 0, -1):
        run = context[-length:]
        ends = [(t, i) for t, text in enumerate(texts) for i in range(length, len(text)) if text[i - length : i] == run]
        if ends:
            return length, [texts[t][i] for t, i in reversed(ends)]
    return 0, []


def found(index: TextIndex, context):
    length, places = index.places_after(context)
    return length, [index.tokens[place] for place in places]


@given(TEXTS, st.lists(st.integers(0, 2), min_size=1, max_size=6), st.integers(1, 5), st.integers(1, 4))
def test_an_index_finds_what_followed_the_longest_runs(texts, context, longest, step):
    index = TextIndex(longest)
    for tokens in texts[:-1]:
        index.add_text(tokens)
    for start in range(0, len(texts[-1]), step):
        index.add(texts[-1][start : start + step])
    assert index.length == len(texts[-1])
    assert found(index, context) == followers(texts, context, longest)


@given(TEXTS, TEXTS, st.lists(st.integers(0, 2), min_size=1, max_size=6), st.integers(1, 5))
def test_removing_texts_leaves_an_index_as_if_they_had_never_been(gone, texts, context, longest):
    index = TextIndex(longest)
    for tokens in (*gone, *texts):
        index.add_text(tokens)
    for tokens in gone:
        index.remove_first(len(tokens))
    assert found(index, context) == followers(texts, context, longest)
    fresh = TextIndex(longest)
    for tokens in texts:
        fresh.add_text(tokens)
    assert len(index._one.latest) == len(fresh._one.latest) and len(index._three.latest) == len(fresh._three.latest)
    assert index.tokens == fresh.tokens and len(index._one.before) == len(fresh._one.before)


def test_an_index_looks_at_the_latest_places_alone():
    index = TextIndex(4)
    index.add([1, 7, *[1, 8] * 100])
    length, places = index.places_after([1])
    assert length == 1 and len(places) < 100 and {index.tokens[place] for place in places} == {8}


def test_suffix_proposes_the_likeliest_continuation():
    tree = propose(SuffixDrafter(), "abcabcabdab", 1)
    assert text(tree.tokens) == "c"
    assert 0 < tree.confidence[0] < 2 / 3


def test_suffix_prefers_what_came_later():
    assert text(propose(SuffixDrafter(), "xaqxarbxa", 1).tokens) == "r"


def test_suffix_prefers_the_longer_context():
    assert text(propose(SuffixDrafter(), "xabyabzabzxab", 1).tokens) == "y"  # after xab; after ab it would be z


def test_suffix_of_width_1_drafts_a_chain_and_wider_ones_a_tree():
    prompt = "abcabdabeab"
    assert propose(SuffixDrafter(), prompt, 6).is_chain
    tree = propose(SuffixDrafter(SuffixOptions(width=3)), prompt, 8)
    assert {text([tree.tokens[n]]) for n in tree.children(-1)} == {"c", "d", "e"}
    assert len(tree) == 8


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(0, 10), st.integers(1, 3))
def test_suffix_keeps_its_budget_and_its_siblings_shares_sum_to_one_at_most(tokens, budget, width):
    drafter, stream = SuffixDrafter(SuffixOptions(width=width)), make_stream(tokens)
    drafter.begin(stream)
    tree = drafter.propose([stream], [budget])[0]
    assert len(tree) <= budget
    for node in range(-1, len(tree)):
        assert len(tree.children(node)) <= width
        assert sum(tree.confidence[child] for child in tree.children(node)) <= 1 + 1e-9


def test_suffix_remembers_earlier_streams():
    drafter = SuffixDrafter()
    first = make_stream(ids("hello"))
    drafter.begin(first)
    grow(first, ids("world"))
    drafter.end(first)  # even without a proposal
    assert text(propose(drafter, "xlowo", 3).tokens) == "rld"


def test_suffix_drafts_for_a_cold_stream_from_itself_alone_and_for_no_other_from_it():
    drafter, cold, other = SuffixDrafter(), make_stream(ids("abcdefab")), make_stream(ids("cdeghicde"))
    cold.options = RequestOptions(is_cold=True)
    for stream in (cold, other):
        drafter.begin(stream)
        drafter.propose([stream], [4])
    assert text(drafter.propose([cold], [4])[0].tokens) == "cdef"
    assert text(drafter.propose([other], [4])[0].tokens) == "ghic"
    grow(cold, ids("cdexy"))
    drafter.end(cold)
    assert not propose(drafter, "xyfab", 3)


def test_suffix_memory_stays_within_its_limit():
    options = SuffixOptions(depth=6, max_tokens=500)
    drafter = SuffixDrafter(options)
    random = np.random.default_rng(0)
    for _ in range(60):
        stream = make_stream(random.integers(0, 26, 30).tolist())
        drafter.begin(stream)
        drafter.propose([stream], [4])
        drafter.end(stream)
        assert len(drafter._earlier.tokens) <= options.max_tokens
    assert len(drafter._earlier.tokens) > 400  # it still remembers the latest
    assert text(propose(drafter, text(stream.tokens[-12:-4]), 2).tokens) == text(stream.tokens[-4:-2])


def test_suffix_forgets_the_oldest_while_others_run():
    drafter = SuffixDrafter(SuffixOptions(depth=4, max_tokens=60))
    running = make_stream(ids("abcdefgabc"))
    drafter.begin(running)
    drafter.propose([running], [2])
    for i in range(10):
        other = make_stream([(i + j) % 26 for j in range(15)])
        drafter.begin(other)
        drafter.end(other)
    assert text(drafter.propose([running], [2])[0].tokens) == "de"
    grow(running, ids("defgabcd"))
    assert text(drafter.propose([running], [2])[0].tokens) == "ef"


@pytest.mark.parametrize(("name", "value", "least"), [("depth", 1, 2), ("width", 0, 1), ("max_tokens", 0, 1)])
def test_suffix_refuses_impossible_options(name, value, least):
    with pytest.raises(UsageError, match=rf"^suffix\({name}={value}\): expected {name} {least} or more$"):
        SuffixOptions(**{name: value})


# -- both, in an engine -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [NgramDrafter, SuffixDrafter])
def test_a_text_that_repeats_is_drafted_nearly_whole(make):
    model = FakeModel(cycle_logits(range(10), 32))
    engine = Engine(model, letters(), make(), FixedPolicy(6))
    stats = engine.generate([0], limits=Limits(max_tokens=120)).result().stats
    assert stats.acceptance_rate > 0.95
    assert stats.target_forwards < 40


@pytest.mark.parametrize("make", [NgramDrafter, SuffixDrafter])
def test_an_abandoned_stream_is_let_go(make):
    model = FakeModel(cycle_logits(range(10), 32))
    drafter = make()
    for _ in Engine(model, letters(), drafter, FixedPolicy(6)).generate([0]):
        break
    assert not getattr(drafter, "_indexes", None) and not getattr(drafter, "_running", None)
