"""The rejection verifier gives the target's distribution, whatever distribution the draft was drawn from.

Each case draws thousands of answers with different seeds and compares the counts of the first two tokens with the
probabilities that the target itself gives them. A verifier that is wrong on purpose fails the same comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import islice
from random import Random

import numpy as np
import pytest
from scipy import stats

from fakes import FakeModel, FakeScores, grow, hashed_logits, make_stream, tree_of
from slipstream.core.engine import Engine
from slipstream.core.noise import Domain
from slipstream.core.sampling import History, Sampling, distribution, draw
from slipstream.core.stream import Limits
from slipstream.core.tree import EMPTY_TREE, ROOT, DraftTree, TreeBuilder
from slipstream.core.verify import SamplingState, Verdict, verify_matching, verify_rejection
from slipstream.drafters.model import DraftModelDrafter, DraftModelOptions
from slipstream.policy import FixedPolicy

VOCAB = 5
PROMPT = [1, 2]
TARGET = hashed_logits(VOCAB, seed=1, scale=1.3)
DRAFT = hashed_logits(VOCAB, seed=2, scale=1.3)  # disagrees with the target a lot
LOGITS = {"target": TARGET, "draft": DRAFT, "similar": lambda tokens: 0.7 * TARGET(tokens) + 0.3 * DRAFT(tokens)}
PLAIN = Sampling(temperature=1.0)
FILTERED = Sampling(temperature=0.8, top_k=3)

Drafting = Callable[[list[int], Random], DraftTree]  # context -> draft


@cache
def proposal(name: str, context: tuple[int, ...]) -> np.ndarray:
    return distribution(LOGITS[name](context), PLAIN)


def pick(q: np.ndarray, random: Random) -> int:
    return random.choices(range(VOCAB), q.tolist())[0]


def sampled_chain(length: int, name: str = "draft") -> Drafting:
    def propose(context: list[int], random: Random) -> DraftTree:
        tokens: list[int] = []
        proposals = []
        for _ in range(length):
            proposals.append(proposal(name, tuple(context + tokens)))
            tokens.append(pick(proposals[-1], random))
        return DraftTree.chain(tokens, proposals=proposals)

    return propose


def certain_chain(context: list[int], random: Random) -> DraftTree:
    return DraftTree.chain([3, 0])


def certain_tree(context: list[int], random: Random) -> DraftTree:
    return tree_of([3, 0], [3, 1], [0, 4], [4])


def siblings_without_replacement(width: int) -> Drafting:
    """`width` siblings after the root and after each of them, each drawn from what the earlier ones left."""

    def propose(context: list[int], random: Random) -> DraftTree:
        builder = TreeBuilder()
        level = [ROOT]
        for _ in range(2):
            grown = []
            for parent in level:
                q = proposal("draft", (*context, *builder.path_tokens(parent)))
                for _ in range(width):
                    token = pick(q, random)
                    grown.append(builder.add(parent, token, proposal=q))
                    q = q.copy()
                    q[token] = 0.0
                    q /= q.sum()
            level = grown
        return builder.build()

    return propose


def _position(context: list[int]) -> int:
    return len(context) - len(PROMPT)


def two_tokens(verifier, propose: Drafting, sampling: Sampling) -> tuple[int, int]:
    """The first two tokens of an answer."""
    tokens, random = list(PROMPT), Random(sampling.seed)
    while len(tokens) < len(PROMPT) + 2:
        before, tree = list(tokens), propose(tokens, random)
        scores = FakeScores(lambda node, tree=tree, before=before: TARGET(before + tree.path_tokens(node)))
        tokens += verifier(tree, scores, SamplingState(sampling, History(PROMPT), _position(tokens))).tokens(tree)
    return tokens[len(PROMPT)], tokens[len(PROMPT) + 1]


def exact_pairs(sampling: Sampling) -> np.ndarray:
    first = distribution(TARGET(PROMPT), sampling)
    return np.array([first[a] * distribution(TARGET([*PROMPT, a]), sampling) for a in range(VOCAB)])


def p_values(pairs: list[tuple[int, int]], sampling: Sampling) -> tuple[float, float]:
    """Of the first token, and of both together. 0 where something came that cannot come."""
    counts = np.zeros((VOCAB, VOCAB))
    for a, b in pairs:
        counts[a, b] += 1
    expected = exact_pairs(sampling) * len(pairs)
    if counts[expected == 0].any():
        return 0.0, 0.0
    return _p_value(counts.sum(1), expected.sum(1)), _p_value(counts.ravel(), expected.ravel())


def _p_value(counts: np.ndarray, expected: np.ndarray) -> float:
    """Rare cells are counted together, as the test asks for five expected in each."""
    common = expected >= 8
    observed = [*counts[common], counts[~common].sum()]
    wanted = [*expected[common], expected[~common].sum()]
    if wanted[-1] == 0:
        observed, wanted = observed[:-1], wanted[:-1]
    return float(stats.chisquare(observed, wanted, sum_check=False).pvalue)


def with_seed(sampling: Sampling, seed: int) -> Sampling:
    return Sampling(temperature=sampling.temperature, top_k=sampling.top_k, seed=seed)


def draw_pairs(verifier, propose: Drafting, sampling: Sampling, count: int) -> list[tuple[int, int]]:
    return [two_tokens(verifier, propose, with_seed(sampling, seed)) for seed in range(count)]


CASES = {
    "nothing drafted": (lambda context, random: EMPTY_TREE, PLAIN),
    "chain of 3": (sampled_chain(3), PLAIN),
    "chain of a similar draft": (sampled_chain(3, "similar"), PLAIN),
    "chain of the target itself": (sampled_chain(3, "target"), PLAIN),
    "chain, filtered target": (sampled_chain(3), FILTERED),
    "certain chain": (certain_chain, PLAIN),
    "certain tree": (certain_tree, PLAIN),
    "two siblings": (siblings_without_replacement(2), PLAIN),
    "three siblings": (siblings_without_replacement(3), PLAIN),
    "three siblings, filtered target": (siblings_without_replacement(3), FILTERED),
}


@pytest.mark.parametrize("case", CASES)
def test_answers_have_the_targets_distribution(case):
    propose, sampling = CASES[case]
    first, both = p_values(draw_pairs(verify_rejection, propose, sampling, 2000), sampling)
    assert first > 1e-4
    assert both > 1e-4


# -- what this comparison catches ---------------------------------------------------------------------------------


def accepts_always(tree, scores, choice):
    path, node = [], ROOT
    while children := tree.children(node):
        node = children[0]
        path.append(node)
    return Verdict(tuple(path), verify_matching(EMPTY_TREE, _below(scores, node), choice).next_token)


def _below(scores, node):
    return FakeScores(lambda _: scores.row(node))


def forgets_the_residual(tree, scores, choice):
    """Draws from p itself after a refusal."""
    verdict = verify_rejection(tree, scores, choice)
    node = verdict.path[-1] if verdict.path else ROOT
    if not tree.children(node):
        return verdict
    p = distribution(scores.row(node), choice.sampling)
    return Verdict(verdict.path, draw(p, choice.sampling.seed, choice.position + len(verdict.path), Domain.TARGET))


def takes_siblings_as_independent(tree, scores, choice):
    """Forgets that the second sibling was drawn from what the first one left."""
    proposals = list(tree.proposals)
    for node, parent in enumerate(tree.parents):
        proposals[node] = tree.proposals[tree.children(parent)[0]]
    wrong = DraftTree(tree.tokens, tree.parents, (), tuple(proposals))
    return verify_rejection(wrong, scores, choice)


@pytest.mark.parametrize(
    ("verifier", "propose"),
    [
        (accepts_always, sampled_chain(3)),
        (accepts_always, certain_chain),
        (forgets_the_residual, sampled_chain(1)),
        (takes_siblings_as_independent, siblings_without_replacement(3)),
    ],
)
def test_a_wrong_verifier_is_found_out(verifier, propose):
    assert min(p_values(draw_pairs(verifier, propose, PLAIN, 2000), PLAIN)) < 1e-6


# -- through the real drafter -------------------------------------------------------------------------------------


def engine_pairs(options: DraftModelOptions, budget: int, sampling: Sampling, count: int, draft_logits=DRAFT):
    target, draft = FakeModel(TARGET, VOCAB), FakeModel(draft_logits, VOCAB)
    engine = Engine(target, _Ids(), DraftModelDrafter(draft, options), FixedPolicy(budget))
    pairs = []
    for seed in range(count):
        answer = engine.generate(PROMPT, with_seed(sampling, seed), Limits(max_tokens=32), verifier="rejection")
        tokens = [token.id for token in islice(answer, 2)]
        answer.cancel()
        pairs.append((tokens[0], tokens[1]))
    assert engine.stats.num_accepted > 0
    assert not draft.open_sequences and not target.open_sequences
    return pairs


class _Ids:
    eos_ids: frozenset[int] = frozenset()

    def stream_decoder(self):
        class Nothing:
            push = staticmethod(lambda token: "")
            flush = staticmethod(lambda: "")

        return Nothing()


@pytest.mark.parametrize(
    ("options", "budget", "sampling"),
    [
        (DraftModelOptions(), 3, PLAIN),
        (DraftModelOptions(p_min=0.45), 3, FILTERED),
        (DraftModelOptions(n_parallel=3, p_split=0.0), 6, PLAIN),
        (DraftModelOptions(n_parallel=3, p_split=0.25, p_min=0.35), 4, FILTERED),
    ],
    ids=["chain", "chain with p_min", "tree", "tree with p_min"],
)
def test_the_draft_models_drafts_keep_the_targets_distribution(options, budget, sampling):
    first, both = p_values(engine_pairs(options, budget, sampling, 800), sampling)
    assert first > 1e-4
    assert both > 1e-4


def test_a_drafts_tokens_are_distributed_as_they_claim():
    """Chi-square of the drafted tokens against the q they carry: first choice, and the sibling given the first."""
    draft = FakeModel(DRAFT, VOCAB)
    drafter = DraftModelDrafter(draft, DraftModelOptions(n_parallel=2, p_split=0.0))
    counts = np.zeros((VOCAB, VOCAB))
    q = distribution(DRAFT(PROMPT), PLAIN)
    for seed in range(1500):
        stream = make_stream(PROMPT, with_seed(PLAIN, seed), Limits(max_tokens=8), drafter, "rejection", VOCAB)
        drafter.begin(stream)
        tree = drafter.propose([stream], [2])[0]
        drafter.end(stream)
        assert tree.parents == (-1, -1)
        np.testing.assert_allclose(tree.proposals[0], q)
        counts[tree.tokens] += 1
    expected = np.array([[q[a] * q[b] / (1 - q[a]) if a != b else 0.0 for b in range(VOCAB)] for a in range(VOCAB)])
    off_diagonal = ~np.eye(VOCAB, dtype=bool)
    assert counts[~off_diagonal].sum() == 0
    assert _p_value(counts[off_diagonal], expected[off_diagonal] * 1500) > 1e-4


def test_rejection_accepts_more_of_a_sampled_draft_than_independent_matching_would():
    """Acceptance of a sampled token is the overlap of the two distributions: sum of min(p, q)."""
    p, q = distribution(TARGET(PROMPT), PLAIN), distribution(DRAFT(PROMPT), PLAIN)
    accepted = 0
    for seed in range(2000):
        sampling = with_seed(PLAIN, seed)
        tree = sampled_chain(1)(PROMPT, Random(seed))
        scores = FakeScores(lambda node, tree=tree: TARGET(PROMPT + tree.path_tokens(node)))
        accepted += bool(verify_rejection(tree, scores, SamplingState(sampling, History(PROMPT), 0)).path)
    assert accepted / 2000 == pytest.approx(np.minimum(p, q).sum(), abs=0.04)


def test_a_shorter_draft_vocabulary_is_no_obstacle():
    q = np.array([0.5, 0.5, 0.0])
    scores = FakeScores(lambda node: np.array([0, 0, 0, 5, 5], np.float32))
    stream = make_stream(PROMPT, PLAIN, vocab=VOCAB)
    grow(stream, [3])
    verdict = verify_rejection(DraftTree.chain([1], proposals=[q]), scores, SamplingState(PLAIN, stream.history, 1))
    assert 0 <= verdict.next_token < VOCAB
