"""What every Model must do, whatever its backend. A backend subclasses ModelContract and supplies `model`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from slipstream.core.protocols import Model, ScoreRequest, Scores, prefill
from slipstream.core.sampling import Sampling, sample
from slipstream.core.tree import EMPTY_TREE, ROOT, DraftTree, TreeBuilder
from slipstream.errors import CapacityError

Logits = np.ndarray[Any, np.dtype[np.float32]]


def random_tree(rng: np.random.Generator, num_nodes: int, vocab: int) -> DraftTree:
    """Each node hangs below any earlier one, ROOT included."""
    builder = TreeBuilder()
    while len(builder) < num_nodes:
        builder.add(int(rng.integers(-1, len(builder))), int(rng.integers(vocab)))
    return builder.build()


def bushy_tree(rng: np.random.Generator, num_nodes: int, vocab: int) -> DraftTree:
    """Three children each, level by level."""
    tokens = rng.permutation(vocab)[:num_nodes].tolist()
    return DraftTree(tuple(tokens), tuple(node // 3 - 1 for node in range(num_nodes)))


def root_siblings(rng: np.random.Generator, num_nodes: int, vocab: int) -> DraftTree:
    return DraftTree(tuple(rng.permutation(vocab)[:num_nodes].tolist()), (ROOT,) * num_nodes)


def chain(rng: np.random.Generator, num_nodes: int, vocab: int) -> DraftTree:
    return DraftTree.chain(rng.integers(vocab, size=num_nodes).tolist())


class ExpiringScores:
    """Scores that can't be read after the model's next `score`: a backend may write over them then."""

    def __init__(self, scores: Scores) -> None:
        self._scores: Scores | None = scores

    def __getattr__(self, name: str) -> Any:
        assert self._scores is not None, "read after the next `score`"
        return getattr(self._scores, name)

    def expire(self) -> None:
        self._scores = None


SHAPES = {"chain": chain, "random": random_tree, "bushy": bushy_tree, "root-siblings": root_siblings}


class ModelContract:
    """Subclasses supply a `model` fixture and say how much a row's logits may differ from another computation of it."""

    tolerance = 0.0  # of a logit; 0: the model is batch-invariant, and its rows are equal bit for bit
    supports_trees = True  # otherwise drafts are chains
    num_seeds = 4  # random cases a test
    prompt_length = 40  # more than a page of any cache

    @pytest.fixture
    def model(self) -> Model:
        raise NotImplementedError("supplied by the backend's test class")

    def num_open(self, model: Model) -> int:
        """Places taken in the cache."""
        return model.num_open  # type: ignore[attr-defined, no-any-return]

    @pytest.fixture(autouse=True)
    def all_places_are_returned(self, model: Model) -> Iterator[None]:
        assert self.num_open(model) == 0
        yield
        assert self.num_open(model) == 0

    @pytest.fixture(autouse=True)
    def scores_expire(self, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
        score, last = model.score, []

        def expiring(requests: Sequence[ScoreRequest]) -> list[Any]:
            for scores in last:
                scores.expire()
            last[:] = [ExpiringScores(scores) for scores in score(requests)]
            return last[:]

        monkeypatch.setattr(model, "score", expiring)

    @pytest.fixture
    def rng(self, request: pytest.FixtureRequest) -> np.random.Generator:
        """Another stream of numbers for each test: no prompt of one test is found in the cache by the next."""
        return np.random.default_rng([ord(c) for c in request.node.name])

    # -- helpers --------------------------------------------------------------------------------------------------

    def assert_same(self, got: Logits, expected: Logits) -> None:
        np.testing.assert_allclose(got, expected, rtol=0, atol=self.tolerance)

    def tokens(self, model: Model, rng: np.random.Generator, count: int) -> list[int]:
        tokens: list[int] = rng.integers(model.info.vocab_size, size=count).tolist()
        return tokens

    def tree(self, model: Model, rng: np.random.Generator, num_nodes: int = 7) -> DraftTree:
        make = random_tree if self.supports_trees else chain
        return make(rng, num_nodes, model.info.vocab_size)

    def rows(self, model: Model, sequence: Any, pending: Sequence[int], tree: DraftTree = EMPTY_TREE) -> Logits:
        """[nodes + 1, vocab] of one request."""
        (scores,) = model.score([ScoreRequest(sequence, pending, tree)])
        return np.stack([scores.row(node) for node in range(ROOT, len(tree))])

    def linear(self, model: Model, tokens: Sequence[int]) -> Logits:
        """[vocab] logits after `tokens`, fed in as few pieces as can be into an empty place."""
        sequence, last = model.open(), max(0, len(tokens) - model.info.max_rows)
        try:
            prefill(model, sequence, tokens[:last])
            return self.rows(model, sequence, tokens[last:])[0]
        finally:
            sequence.close()

    def filled(self, model: Model, tokens: Sequence[int]) -> Any:
        """A sequence that holds `tokens`, all of them computed for it."""
        sequence = model.open()
        prefill(model, sequence, tokens)
        return sequence

    def require_trees(self) -> None:
        if not self.supports_trees:
            pytest.skip("this backend scores chains only")

    # -- scores ---------------------------------------------------------------------------------------------------

    def test_it_says_whether_it_is_batch_invariant(self, model: Model) -> None:
        assert model.info.batch_invariant == (self.tolerance == 0)

    def test_rows_are_float32_logits_of_the_whole_vocabulary(self, model: Model, rng: np.random.Generator) -> None:
        sequence = model.open()
        (scores,) = model.score([ScoreRequest(sequence, self.tokens(model, rng, 3), chain(rng, 2, 50))])
        for node in (ROOT, 0, 1):
            assert scores.row(node).shape == (model.info.vocab_size,)
            assert scores.row(node).dtype == np.float32
            assert scores.argmax(node) == int(scores.row(node).argmax())
        sequence.close()

    @pytest.mark.parametrize("shape", SHAPES)
    def test_a_tree_row_equals_feeding_its_path_linearly(
        self, model: Model, rng: np.random.Generator, shape: str
    ) -> None:
        if shape != "chain":
            self.require_trees()
        for seed in range(self.num_seeds):
            prompt = self.tokens(model, rng, self.prompt_length - 2 * seed)
            pending = self.tokens(model, rng, 1 + seed % 3)
            tree = SHAPES[shape](rng, 3 + 2 * seed, model.info.vocab_size)
            sequence = self.filled(model, prompt)
            rows = self.rows(model, sequence, pending, tree)
            for node in range(ROOT, len(tree)):
                expected = self.linear(model, [*prompt, *pending, *tree.path_tokens(node)])
                self.assert_same(rows[node + 1], expected)
            sequence.close()

    @pytest.mark.parametrize("temperature", [0.0, 0.8])
    def test_what_it_chooses_is_what_its_logits_say(
        self, model: Model, rng: np.random.Generator, temperature: float
    ) -> None:
        sampling, tree = Sampling(temperature=temperature, seed=3), chain(rng, 4, model.info.vocab_size)
        sequence = model.open([], 64)
        [scores] = model.score([ScoreRequest(sequence, [1, 2, 3], tree, sampling, 5)])
        for node in range(ROOT, len(tree)):
            assert scores.chosen(node) in (None, sample(scores.row(node), sampling, 5 + node + 1))
        sequence.close()

    def test_a_tree_in_an_empty_sequence(self, model: Model, rng: np.random.Generator) -> None:
        pending, tree = self.tokens(model, rng, 1), self.tree(model, rng)
        sequence = model.open()
        rows = self.rows(model, sequence, pending, tree)
        for node in range(ROOT, len(tree)):
            self.assert_same(rows[node + 1], self.linear(model, [*pending, *tree.path_tokens(node)]))
        sequence.close()

    def test_scoring_commits_nothing(self, model: Model, rng: np.random.Generator) -> None:
        sequence = self.filled(model, self.tokens(model, rng, self.prompt_length))
        pending, tree = self.tokens(model, rng, 2), self.tree(model, rng)
        first = self.rows(model, sequence, pending, tree)
        assert sequence.length == self.prompt_length
        self.rows(model, sequence, self.tokens(model, rng, 3), self.tree(model, rng, 11))
        self.assert_same(self.rows(model, sequence, pending, tree), first)
        sequence.close()

    def test_prefill_in_pieces_equals_prefill_at_once(self, model: Model, rng: np.random.Generator) -> None:
        tokens = self.tokens(model, rng, self.prompt_length + 30)
        expected = self.linear(model, tokens)
        for step in (1, 7, 32, 33):
            sequence = model.open()
            for start in range(0, len(tokens), step):
                row = self.rows(model, sequence, tokens[start : start + step])[0]
                sequence.commit()
            assert sequence.length == len(tokens)
            self.assert_same(row, expected)
            sequence.close()

    def test_more_rows_than_a_forward_takes_are_refused(self, model: Model, rng: np.random.Generator) -> None:
        sequence = model.open()
        pending = self.tokens(model, rng, model.info.max_rows - 2)
        with pytest.raises(ValueError):
            model.score([ScoreRequest(sequence, pending, chain(rng, 3, 50))])
        assert sequence.length == 0
        sequence.close()

    def test_a_request_without_a_pending_token_is_refused(self, model: Model, rng: np.random.Generator) -> None:
        sequence = model.open()
        with pytest.raises(ValueError):
            model.score([ScoreRequest(sequence, [], chain(rng, 2, 50))])
        sequence.close()

    @pytest.mark.parametrize("outside", ["below", "first above", "far above"])
    def test_token_ids_outside_the_vocabulary_are_refused(self, model: Model, outside: str) -> None:
        vocab_size = model.info.num_readable or model.info.vocab_size
        token = {"below": -1, "first above": vocab_size, "far above": 1 << 40}[outside]
        sequence = model.open()
        for pending, draft in (([3, token], []), ([3], [4, token])):
            with pytest.raises(ValueError, match=f"0 to {vocab_size - 1}"):
                model.score([ScoreRequest(sequence, pending, DraftTree.chain(draft))])
        sequence.close()

    # -- commit ---------------------------------------------------------------------------------------------------

    def test_scores_after_a_commit_equal_a_fresh_prefill(self, model: Model, rng: np.random.Generator) -> None:
        for seed in range(self.num_seeds):
            prompt, pending = self.tokens(model, rng, self.prompt_length - 5), self.tokens(model, rng, 1 + seed)
            tree = self.tree(model, rng, 9)
            node = int(rng.integers(len(tree)))
            sequence = self.filled(model, prompt)
            self.rows(model, sequence, pending, tree)
            sequence.commit(tree.path(node))
            text = [*prompt, *pending, *tree.path_tokens(node)]
            assert sequence.length == len(text)
            (after,) = self.tokens(model, rng, 1)
            self.assert_same(self.rows(model, sequence, [after])[0], self.linear(model, [*text, after]))
            sequence.close()

    def test_a_branch_that_is_not_the_first_can_be_committed(self, model: Model, rng: np.random.Generator) -> None:
        self.require_trees()
        prompt = self.tokens(model, rng, 30)  # the draft crosses into the next page
        tree = DraftTree((5, 6, 7, 8, 9, 10), (ROOT, ROOT, 0, 1, 3, 4))
        sequence = self.filled(model, prompt)
        self.rows(model, sequence, [11], tree)
        sequence.commit((1, 3, 4, 5))
        expected = self.linear(model, [*prompt, 11, 6, 8, 9, 10, 12])
        self.assert_same(self.rows(model, sequence, [12])[0], expected)
        sequence.close()

    def test_an_empty_path_keeps_the_pending_tokens_alone(self, model: Model, rng: np.random.Generator) -> None:
        prompt, pending = self.tokens(model, rng, 20), self.tokens(model, rng, 3)
        sequence = self.filled(model, prompt)
        self.rows(model, sequence, pending, self.tree(model, rng))
        sequence.commit()
        assert sequence.length == 23
        self.assert_same(self.rows(model, sequence, [3])[0], self.linear(model, [*prompt, *pending, 3]))
        sequence.close()

    def test_many_rounds_of_drafts_equal_a_fresh_prefill(self, model: Model, rng: np.random.Generator) -> None:
        text = self.tokens(model, rng, 10)
        sequence = self.filled(model, text)
        while len(text) < self.prompt_length + 30:
            pending, tree = self.tokens(model, rng, 1), self.tree(model, rng, 12)
            node = int(rng.integers(ROOT, len(tree)))
            rows = self.rows(model, sequence, pending, tree)
            sequence.commit(tree.path(node))
            text += [*pending, *tree.path_tokens(node)]
        self.assert_same(rows[node + 1], self.linear(model, text))
        sequence.close()

    # -- rewind ---------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("keep", [0, 1, 31, 32, 33, 39, 40])
    def test_going_on_after_a_rewind_equals_fresh(self, model: Model, rng: np.random.Generator, keep: int) -> None:
        prompt, other = self.tokens(model, rng, 40), self.tokens(model, rng, 6)
        sequence = self.filled(model, prompt)
        sequence.rewind(keep)
        assert sequence.length == keep
        self.assert_same(self.rows(model, sequence, other)[0], self.linear(model, [*prompt[:keep], *other]))
        sequence.close()

    def test_a_rewind_after_committed_drafts(self, model: Model, rng: np.random.Generator) -> None:
        prompt, tree = self.tokens(model, rng, 30), self.tree(model, rng, 10)
        deepest = int(np.argmax(tree.depths()))
        sequence = self.filled(model, prompt)
        self.rows(model, sequence, [4], tree)
        sequence.commit(tree.path(deepest))
        text = [*prompt, 4, *tree.path_tokens(deepest)]
        sequence.rewind(len(text) - 1)
        self.assert_same(self.rows(model, sequence, [5])[0], self.linear(model, [*text[:-1], 5]))
        sequence.close()

    def test_a_rewind_drops_a_score_that_was_not_committed(self, model: Model, rng: np.random.Generator) -> None:
        prompt = self.tokens(model, rng, 33)
        sequence = self.filled(model, prompt)
        self.rows(model, sequence, [1, 2], self.tree(model, rng, 40))
        sequence.rewind(33)
        self.assert_same(self.rows(model, sequence, [7])[0], self.linear(model, [*prompt, 7]))
        sequence.close()

    # -- fork -----------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("length", [20, 32, 45])
    def test_a_fork_and_its_source_go_on_independently(
        self, model: Model, rng: np.random.Generator, length: int
    ) -> None:
        prompt, left, right = (self.tokens(model, rng, n) for n in (length, 15, 15))
        source = self.filled(model, prompt)
        fork = source.fork()
        assert fork.length == length
        for i in range(15):  # in turns, so that each would see the other's writes
            source_row = self.rows(model, source, [left[i]])[0]
            source.commit()
            fork_row = self.rows(model, fork, [right[i]])[0]
            fork.commit()
        self.assert_same(source_row, self.linear(model, [*prompt, *left]))
        self.assert_same(fork_row, self.linear(model, [*prompt, *right]))
        source.close()
        fork.close()

    def test_a_fork_outlives_its_source(self, model: Model, rng: np.random.Generator) -> None:
        prompt = self.tokens(model, rng, 45)
        source = self.filled(model, prompt)
        fork = source.fork()
        source.rewind(10)
        prefill(model, source, self.tokens(model, rng, 40))
        source.close()
        self.assert_same(self.rows(model, fork, [3])[0], self.linear(model, [*prompt, 3]))
        fork.close()

    def test_forks_of_one_sequence_are_scored_together(self, model: Model, rng: np.random.Generator) -> None:
        prompt = self.tokens(model, rng, 40)
        source = self.filled(model, prompt)
        branches = [source, source.fork(), source.fork()]
        scores = model.score([ScoreRequest(b, [i], chain(rng, i, 50)) for i, b in enumerate(branches)])
        for i, row in enumerate([score.row(ROOT) for score in scores]):
            self.assert_same(row, self.linear(model, [*prompt, i]))
        for branch in branches:
            branch.close()

    # -- many streams ---------------------------------------------------------------------------------------------

    def test_streams_of_different_lengths_do_not_mix(self, model: Model, rng: np.random.Generator) -> None:
        lengths = [1, 70, 5, 32, 31, 33, 12]
        prompts = [self.tokens(model, rng, n) for n in lengths]
        trees = [self.tree(model, rng, n % 6) for n in lengths]
        sequences = [self.filled(model, prompt) for prompt in prompts]
        alone = [self.rows(model, s, [i], t) for i, (s, t) in enumerate(zip(sequences, trees, strict=True))]
        requests = [ScoreRequest(s, [i], t) for i, (s, t) in enumerate(zip(sequences, trees, strict=True))]
        for request, scores, expected in zip(requests, model.score(requests), alone, strict=True):
            for node in range(ROOT, len(request.tree)):
                self.assert_same(scores.row(node), expected[node + 1])
        for i, sequence in enumerate(sequences):
            sequence.commit(trees[i].path(len(trees[i]) - 1) if trees[i] else ())
            kept = trees[i].path_tokens(len(trees[i]) - 1) if trees[i] else []
            after = self.rows(model, sequence, [9])[0]
            self.assert_same(after, self.linear(model, [*prompts[i], i, *kept, 9]))
            sequence.close()

    def test_a_prompt_and_a_draft_share_a_forward(self, model: Model, rng: np.random.Generator) -> None:
        prompt, other, tree = self.tokens(model, rng, 20), self.tokens(model, rng, 50), self.tree(model, rng)
        decoding, starting = self.filled(model, prompt), model.open()
        requests = [ScoreRequest(decoding, [1], tree), ScoreRequest(starting, other)]
        drafted, started = model.score(requests)
        rows = drafted.row(2), started.row(ROOT)
        self.assert_same(rows[0], self.linear(model, [*prompt, 1, *tree.path_tokens(2)]))
        self.assert_same(rows[1], self.linear(model, other))
        decoding.close()
        starting.close()

    def test_a_row_does_not_depend_on_its_company(self, model: Model, rng: np.random.Generator) -> None:
        """1 to 40 rows, in any order: streams of one row, drafts and prompt pieces."""
        prompt, tree = self.tokens(model, rng, self.prompt_length), self.tree(model, rng, 4)
        sequence = self.filled(model, prompt)
        expected = self.rows(model, sequence, [1], tree)
        others = [self.filled(model, self.tokens(model, rng, 3 + 5 * i)) for i in range(6)]
        for num_rows in {*range(6, 41, max(1, 8 // self.num_seeds)), 40}:
            requests = [ScoreRequest(sequence, [1], tree)]
            left = num_rows - requests[0].num_rows
            for other in others:
                size = left if other is others[-1] else int(rng.integers(0, left + 1))
                if size:
                    drafted = int(rng.integers(size))
                    pending = self.tokens(model, rng, size - drafted)
                    requests.append(ScoreRequest(other, pending, self.tree(model, rng, drafted)))
                left -= size
            order = rng.permutation(len(requests)).tolist()
            scores = model.score([requests[i] for i in order])[order.index(0)]
            for node in range(ROOT, len(tree)):
                self.assert_same(scores.row(node), expected[node + 1])
        for s in (sequence, *others):
            s.close()

    # -- prefix reuse ---------------------------------------------------------------------------------------------

    def reused(self, model: Model, tokens: list[int], at_least: int) -> Any:
        """Opens a stream that finds its beginning, and feeds it the rest but for the last token."""
        sequence = model.open(tokens)
        assert at_least <= sequence.length < len(tokens)
        prefill(model, sequence, tokens[sequence.length : -1])
        return sequence

    @pytest.mark.parametrize("shared", [5, 32, 40, 47])
    def test_a_known_beginning_is_reused(self, model: Model, rng: np.random.Generator, shared: int) -> None:
        first = self.tokens(model, rng, 48)
        self.filled(model, first).close()
        second = [*first[:shared], *self.tokens(model, rng, 10)]
        sequence = self.reused(model, second, at_least=shared)
        self.assert_same(self.rows(model, sequence, second[-1:])[0], self.linear(model, second))
        sequence.close()

    def test_all_prompts_of_closed_streams_are_reused(self, model: Model, rng: np.random.Generator) -> None:
        texts = [self.tokens(model, rng, count) for count in (30, 40, 35)]
        for text in texts:
            self.filled(model, text).close()
        for text in (texts[0], texts[2], texts[1], texts[0]):
            longer = [*text, *self.tokens(model, rng, 5)]
            sequence = self.reused(model, longer, at_least=len(text))
            self.assert_same(self.rows(model, sequence, longer[-1:])[0], self.linear(model, longer))
            sequence.close()

    def test_the_last_token_is_never_reused(self, model: Model, rng: np.random.Generator) -> None:
        tokens = self.tokens(model, rng, 40)
        self.filled(model, tokens).close()
        sequence = model.open(tokens)
        assert 0 < sequence.length < 40
        self.assert_same(self.rows(model, sequence, tokens[sequence.length :])[0], self.linear(model, tokens))
        sequence.close()

    def test_accepted_drafts_are_reused_and_rejected_ones_are_not(self, model: Model, rng: np.random.Generator) -> None:
        prompt = self.tokens(model, rng, 30)
        source = self.filled(model, prompt)
        self.rows(model, source, [1], DraftTree.chain([2, 3, 4, 5]))
        source.commit((0, 1))
        source.close()
        text = [*prompt, 1, 2, 3, 4, 5, 6]
        sequence = self.reused(model, text, at_least=33)
        self.assert_same(self.rows(model, sequence, [6])[0], self.linear(model, text))
        sequence.close()

    @pytest.mark.parametrize("fate", ["stays", "goes on", "closes", "rewinds", "drafts"])
    def test_a_stream_reuses_what_one_still_open_holds(self, model: Model, rng: np.random.Generator, fate: str) -> None:
        first = self.tokens(model, rng, 45)
        source = self.filled(model, first)
        second = [*first[:40], *self.tokens(model, rng, 10)]
        sequence = model.open(second)
        assert 40 <= sequence.length < len(second)
        if fate == "goes on":
            prefill(model, source, self.tokens(model, rng, 30))
        elif fate == "closes":
            source.close()
        elif fate == "rewinds":
            source.rewind(20)
            prefill(model, source, self.tokens(model, rng, 40))
        elif fate == "drafts":
            tree = self.tree(model, rng, 20)
            self.rows(model, source, [3], tree)
            source.commit(tree.path(19))
        row = self.rows(model, sequence, second[sequence.length :])[0]
        self.assert_same(row, self.linear(model, second))
        source.close()
        sequence.close()

    def test_the_source_is_not_changed_by_a_stream_that_reuses_it(self, model: Model, rng: np.random.Generator) -> None:
        first = self.tokens(model, rng, 45)
        source = self.filled(model, first)
        second = [*first[:40], *self.tokens(model, rng, 20)]
        sequence = self.reused(model, second, at_least=40)
        self.rows(model, sequence, second[-1:], self.tree(model, rng))
        sequence.commit()
        sequence.rewind(3)
        prefill(model, sequence, self.tokens(model, rng, 40))
        sequence.close()
        self.assert_same(self.rows(model, source, [8])[0], self.linear(model, [*first, 8]))
        source.close()

    def test_an_open_score_is_committed_after_another_stream_took_the_beginning(
        self, model: Model, rng: np.random.Generator
    ) -> None:
        first, tree = self.tokens(model, rng, 40), self.tree(model, rng, 6)
        source = self.filled(model, first)
        self.rows(model, source, [2], tree)
        second = [*first, *self.tokens(model, rng, 5)]
        sequence = self.reused(model, second, at_least=40)
        source.commit(tree.path(5))
        text = [*first, 2, *tree.path_tokens(5), 9]
        self.assert_same(self.rows(model, source, [9])[0], self.linear(model, text))
        self.assert_same(self.rows(model, sequence, second[-1:])[0], self.linear(model, second))
        source.close()
        sequence.close()

    # -- places ---------------------------------------------------------------------------------------------------

    def test_closing_twice_is_harmless(self, model: Model, rng: np.random.Generator) -> None:
        prompt = self.tokens(model, rng, 20)
        first, second = self.filled(model, prompt), self.filled(model, prompt)
        first.close()
        first.close()
        assert self.num_open(model) == 1
        self.assert_same(self.rows(model, second, [3])[0], self.linear(model, [*prompt, 3]))
        second.close()
        second.close()

    def test_a_full_cache_says_so_and_recovers(self, model: Model) -> None:
        reserve = model.info.context_length // 2
        sequences = []
        while model.can_open(reserve) and len(sequences) < 1000:
            sequences.append(model.open(reserve=reserve))
        assert sequences
        with pytest.raises(CapacityError):
            model.open(reserve=reserve)
        sequences.pop().close()
        assert model.can_open(reserve)
        sequences.append(model.open(reserve=reserve))
        for sequence in sequences:
            sequence.close()
