"""Verifiers: which drafted tokens are accepted, and the token that the target adds.

`matching` (the default) gives the same text for a seed as plain decoding: the target's own token is computed at each
node, and drafted tokens are accepted for as long as they match it. This holds for any draft.

`rejection` accepts more of a draft that samples: with p the target's distribution and q the one a token was drawn from,
it is accepted with probability min(1, p/q), and after a rejection p becomes the normalised max(p - q, 0). The answer
has the target's distribution, but not the text that plain decoding has for the same seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from slipstream.core.noise import Domain, uniform
from slipstream.core.protocols import Scores
from slipstream.core.sampling import History, Row, Sampling, distribution, draw, processed, sample
from slipstream.core.tree import ROOT, DraftTree
from slipstream.errors import NonFiniteLogitsError

Probabilities = npt.NDArray[np.float64]  # [vocab]


class Verdict(NamedTuple):
    """`path`: the accepted nodes from the root down. `next_token`: the target's own token after them."""

    path: tuple[int, ...]
    next_token: int

    def tokens(self, tree: DraftTree) -> list[int]:
        """The tokens that the stream gains in this round: the accepted ones, then the target's."""
        return [*[tree.tokens[node] for node in self.path], self.next_token]


class Constraint(Protocol):
    """Restricts which tokens may follow: a grammar. One for each stream; it is told what is drafted before the forward
    pass, so that it can prepare in another thread.
    """

    def prepare(self, answer: Sequence[int], tree: DraftTree) -> None:
        """The stream's answer so far and the draft that is about to be scored. Returns at once."""
        ...

    def restrict(self, row: Row, path: Sequence[int]) -> Row:
        """The logits after `path`, which follows the prepared answer: a copy with -inf for what must not follow."""
        ...


@dataclass(slots=True)
class SamplingState:
    """How one stream samples now: its settings, its history, and the position of the next token."""

    sampling: Sampling
    history: History
    position: int
    constraint: Constraint | None = None

    def row(self, tree: DraftTree, scores: Scores, node: int) -> Row:
        """Processed logits at a node; the history includes the path to it."""
        row = scores.row(node)
        if self.sampling.changes_logits:
            row = processed(row, self.sampling, self.history, tree.path_tokens(node))
        return self.constraint.restrict(row, tree.path_tokens(node)) if self.constraint else row


Verify = Callable[[DraftTree, Scores, SamplingState], Verdict]


def verify_matching(tree: DraftTree, scores: Scores, choice: SamplingState) -> Verdict:
    path: list[int] = []
    node = ROOT
    while True:
        try:
            token = _own_token(tree, scores, choice, node, len(path))
        except NonFiniteLogitsError as error:
            return _up_to(tree, path, error)
        child = tree.child(node, token) if tree else None
        if child is None:
            return Verdict(tuple(path), token)
        path.append(child)
        node = child


def _own_token(tree: DraftTree, scores: Scores, choice: SamplingState, node: int, depth: int) -> int:
    """The target's token after a node: chosen by the device if it did, else from the logits."""
    token = scores.chosen(node)
    if token is None:
        return sample(choice.row(tree, scores, node), choice.sampling, choice.position + depth)
    if token < 0:
        raise NonFiniteLogitsError("no logit is a number")
    return token


def _up_to(tree: DraftTree, path: list[int], error: NonFiniteLogitsError) -> Verdict:
    """The verdict for a path after which the logits are not finite. It ends with its last token, as in plain decoding,
    and the next round fails at its start. Raises the error if nothing was accepted.
    """
    if not path:
        raise error
    return Verdict(tuple(path[:-1]), tree.tokens[path[-1]])


def verify_rejection(tree: DraftTree, scores: Scores, choice: SamplingState) -> Verdict:
    if choice.sampling.is_greedy:
        return verify_matching(tree, scores, choice)
    path: list[int] = []
    node = ROOT
    while True:
        try:
            p = distribution(choice.row(tree, scores, node), choice.sampling)
        except NonFiniteLogitsError as error:
            return _up_to(tree, path, error)
        child, p = _accept_one(tree, node, p, choice.sampling.seed, choice.position + len(path))
        if child is None:
            token = draw(p, choice.sampling.seed, choice.position + len(path), Domain.TARGET)
            return Verdict(tuple(path), token)
        path.append(child)
        node = child


def _accept_one(
    tree: DraftTree, node: int, p: Probabilities, seed: int, position: int
) -> tuple[int | None, Probabilities]:
    """The first accepted child, or None and the rest of p after all of them were rejected."""
    for turn, child in enumerate(tree.children(node)):
        token = tree.tokens[child]
        q = tree.proposals[child] if tree.proposals else None
        q_token = 1.0 if q is None else float(q[token])
        if uniform(seed, position, turn, Domain.ACCEPT) * q_token < p[token]:
            return child, p
        p = _residual(p, q, token)
    return None, p


def _residual(p: Probabilities, q: Probabilities | None, token: int) -> Probabilities:
    left = p.copy()
    if q is None:
        left[token] = 0.0
    else:
        left[: len(q)] -= q[: len(left)]
        np.maximum(left, 0.0, out=left)
    total = left.sum()
    return left / total if total > 0 else p  # p == q: a rejection with probability 0


@dataclass(frozen=True, slots=True)
class Verifier:
    """How drafts are verified, and what the method needs from them.

    `couples`: a draft matches most often if it samples with the target's own noise, and it may be cut anywhere. If
    false, a draft samples independently, passes on its distributions, and is scored as drawn. `judges_unscored`: the
    target's tokens alone show whether a draft would have been accepted.
    """

    name: str
    verify: Verify
    couples: bool
    judges_unscored: bool = True


VERIFIERS = {
    "matching": Verifier("matching", verify_matching, couples=True),
    "rejection": Verifier("rejection", verify_rejection, couples=False, judges_unscored=False),
}
