"""A draft with another vocabulary: shared tokens, retokenised text, and the target's text either way."""

from __future__ import annotations

import numpy as np
import pytest

from fakes import FakeModel, FakeTokenizer, hashed_logits, plain_tokens
from slipstream.core.engine import Engine
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.drafters.model import DraftModelDrafter, DraftModelOptions
from slipstream.drafters.retokenise import RetokenisingDrafter
from slipstream.drafters.vocabulary import SameVocabulary, SharedTokens, retokenised
from slipstream.policy import FixedPolicy

EOS = 0
TARGET = FakeTokenizer(["<eos>", *"abcdefgh", "ab", "cde", "gh"], eos=EOS)
OVERLAPPING = FakeTokenizer(["h", "g", "<eos>", "cde", "fg", "f", "e", "d", "c", "b", "a", "ha"], eos=2)
DISTANT = FakeTokenizer(["<eos>", "bc", "de", "fg", "ha", *"abcdefgh", "bcdefg", "habcd", "gha"], eos=EOS)
FINE, COARSE = (
    FakeTokenizer(["<eos>", *"abcdefgh"], eos=EOS),
    FakeTokenizer(["<eos>", *"abcdefgh", "abcdefgh"], eos=EOS),
)
GREEDY, SAMPLED = Sampling(), Sampling(temperature=0.8, seed=4)


def cycle_text(tokenizer: FakeTokenizer, vocab: int | None = None) -> FakeModel:
    """Says abcdefghabcdefgh… in its own tokens, the longest that fit."""
    vocab = vocab or tokenizer.vocab_size
    circle = "abcdefgh" * 3

    def logits(tokens):
        text = tokenizer.decode(tokens[-4:])
        at = "abcdefgh".index(text[-1]) + 1 if text else 0
        row = np.full(vocab, -5.0, np.float32)
        for i, piece in enumerate(tokenizer.pieces):
            if i not in tokenizer.eos_ids and circle[at:].startswith(piece):
                row[i] = 3.0 * len(piece)
        return row

    return FakeModel(logits, vocab)


def translate(draft, draft_texts, target) -> DraftModelDrafter:
    return DraftModelDrafter(draft, DraftModelOptions(), SharedTokens(draft_texts, TARGET, target.info.vocab_size))


DRAFTERS = {
    "shared": lambda draft, target: translate(draft, OVERLAPPING, target),
    "retokenised, overlapping": lambda draft, target: RetokenisingDrafter(draft, OVERLAPPING, TARGET),
    "retokenised, distant": lambda draft, target: RetokenisingDrafter(draft, DISTANT, TARGET),
}
TEXTS = {"shared": OVERLAPPING, "retokenised, overlapping": OVERLAPPING, "retokenised, distant": DISTANT}


@pytest.mark.parametrize("kind", DRAFTERS)
@pytest.mark.parametrize("budget", [1, 3, 6])
def test_models_that_agree_on_the_text_are_accepted_across_vocabularies(kind, budget):
    target, draft = cycle_text(TARGET), cycle_text(TEXTS[kind])
    engine = Engine(target, TARGET, DRAFTERS[kind](draft, target), FixedPolicy(budget))
    answer = engine.generate("abcd", GREEDY, Limits(max_tokens=40)).result()
    assert answer.tokens == plain_tokens(target.logits, TARGET.encode("abcd"), GREEDY, 40)
    assert answer.stats.drafter_error is None
    assert answer.stats.num_accepted > (5 if budget > 1 else 0)
    assert not draft.open_sequences


@pytest.mark.parametrize("shares_tokens", [True, False])
def test_a_text_with_many_more_tokens_for_the_draft_ends_drafting_and_nothing_else(shares_tokens):
    """The fake refuses a sequence that grows beyond what was reserved for it."""
    target, draft = cycle_text(COARSE), cycle_text(FINE)
    shared = DraftModelDrafter(draft, vocabulary=SharedTokens(FINE, COARSE, target.info.vocab_size))
    drafter = shared if shares_tokens else RetokenisingDrafter(draft, FINE, COARSE)
    engine = Engine(target, COARSE, drafter, FixedPolicy(2))
    answer = engine.generate("abcdefgh", GREEDY, Limits(max_tokens=40)).result()
    assert answer.tokens == plain_tokens(target.logits, COARSE.encode("abcdefgh"), GREEDY, 40)
    assert answer.stats.drafter_error is None
    assert not draft.open_sequences


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kind", DRAFTERS)
def test_models_that_disagree_give_the_targets_text_all_the_same(kind, sampling):
    target = FakeModel(hashed_logits(TARGET.vocab_size, 1), TARGET.vocab_size)
    draft = FakeModel(hashed_logits(TEXTS[kind].vocab_size, 2), TEXTS[kind].vocab_size)
    engine = Engine(target, TARGET, DRAFTERS[kind](draft, target), FixedPolicy(4))
    prompts = ["a", "hgf", "abcdeabcde"]
    answers = [engine.generate(prompt, sampling, Limits(max_tokens=30)) for prompt in prompts]
    for prompt, answer in zip(prompts, answers, strict=True):
        expected = plain_tokens(target.logits, TARGET.encode(prompt), sampling, 30, stop=[EOS])
        assert answer.result().tokens == expected
        assert answer.stats.drafter_error is None
    assert not draft.open_sequences and not target.open_sequences


@pytest.mark.parametrize("verifier", ["matching", "rejection"])
def test_shared_tokens_work_with_every_verifier_and_setting(verifier):
    target, draft = cycle_text(TARGET, vocab=16), cycle_text(OVERLAPPING)
    engine = Engine(target, TARGET, translate(draft, OVERLAPPING, target), FixedPolicy(4))
    sampling = Sampling(temperature=1.0, top_k=5, repetition_penalty=1.1, frequency_penalty=0.1, seed=2)
    answer = engine.generate("ab", sampling, Limits(max_tokens=40), verifier=verifier).result()
    assert answer.stats.drafter_error is None
    assert answer.stats.num_accepted > 0


# -- the maps -----------------------------------------------------------------------------------------------------


def test_shared_tokens_map_equal_bytes_and_leave_special_ones_out():
    shared = SharedTokens(OVERLAPPING, TARGET, target_size=14)
    row = shared.to_target_row(np.arange(12, dtype=np.float32))
    assert row.shape == (14,)
    for token in range(14):
        piece = TARGET.pieces[token] if token < TARGET.vocab_size else None
        if piece in OVERLAPPING.pieces and token != EOS:
            assert row[token] == OVERLAPPING.pieces.index(piece) == shared.to_draft_token(token)
        else:
            assert row[token] == -np.inf
    assert shared.overlap == 9 / 12


def test_the_draft_reads_the_streams_text_in_its_own_tokens():
    shared = SharedTokens(OVERLAPPING, TARGET, 12)
    assert OVERLAPPING.decode(shared.context(TARGET.encode("abcdefgha"))) == "abcdefgha"


def test_retokenising_leaves_an_incomplete_character_out():
    class Bytes(FakeTokenizer):
        def decode(self, ids):
            return bytes(ids).decode("utf-8", errors="replace")

    source = Bytes([""] * 256)
    target = FakeTokenizer(["<eos>", "a", "é"], eos=0)
    assert retokenised(list("aé".encode()), source, target) == [1, 2]
    assert retokenised(list("aé".encode()[:-1]), source, target) == [1]


@pytest.mark.parametrize(("target_size", "row_size"), [(64, 64), (64, 70), (70, 64)])
def test_the_same_vocabulary_only_cuts_padding(target_size, row_size):
    same = SameVocabulary(target_size)
    row = np.arange(row_size, dtype=np.float32)
    assert same.to_target_row(row).tolist() == row[:target_size].tolist()
    assert same.context([1, 2]) == [1, 2]
    assert same.to_draft_token(7) == 7


def test_a_retokenised_draft_never_exceeds_its_budget_and_leaves_its_last_token_out():
    from fakes import make_stream

    draft = cycle_text(DISTANT)
    drafter = RetokenisingDrafter(draft, DISTANT, TARGET)
    for budget in range(6):
        stream = make_stream(TARGET.encode("abc"))
        drafter.begin(stream)
        tree = drafter.propose([stream], [budget])[0]
        drafter.end(stream)
        assert len(tree) <= budget
        assert "abcdefghabcdefghabcdefgh"[3:].startswith(TARGET.decode(tree.tokens))
    assert not draft.open_sequences


@pytest.mark.parametrize("limits", [{"context": 12}, {"max_sequences": 0}], ids=str)
def test_a_draft_model_that_cannot_follow_leaves_the_stream_to_the_target(limits):
    target, like = cycle_text(TARGET), cycle_text(DISTANT)
    draft = FakeModel(like.logits, DISTANT.vocab_size, **limits)
    engine = Engine(target, TARGET, RetokenisingDrafter(draft, DISTANT, TARGET), FixedPolicy(3))
    answer = engine.generate("abcd", GREEDY, Limits(max_tokens=40)).result()
    assert answer.tokens == plain_tokens(target.logits, TARGET.encode("abcd"), GREEDY, 40)
    assert answer.stats.drafter_error is None
