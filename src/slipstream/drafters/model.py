"""`model`: a smaller model drafts a chain, or a tree that branches where its second choice is likely too."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import numpy.typing as npt

from slipstream.core.noise import Domain
from slipstream.core.protocols import ExtendingModel, ExtendRequest, Model
from slipstream.core.sampling import Row, distribution, draw, processed, sample
from slipstream.core.stream import Observation, Stream
from slipstream.core.tree import ROOT, DraftTree, TreeBuilder
from slipstream.drafters.base import Guess
from slipstream.drafters.draft_cache import Branch, DraftCache, read_on
from slipstream.drafters.vocabulary import SameVocabulary, VocabularyMap
from slipstream.errors import CapacityError, UsageError


@dataclass(frozen=True, slots=True)
class DraftModelOptions:
    p_min: float = 0.0  # stop drafting when the draft's best token is less likely than this
    n_parallel: int = 1  # branches of the tree; 1 drafts a chain
    p_split: float = 0.1  # branch where the second choice is at least this likely
    head: int = 0  # generate only the first so many ids of the vocabulary, with a smaller output head; 0 is all of them

    def __post_init__(self) -> None:
        if not 0 <= self.p_min < 1:
            raise UsageError(f"p_min={self.p_min:g}: expected p_min 0 or more, and less than 1")
        if not 0 <= self.p_split <= 1:
            raise UsageError(f"p_split={self.p_split:g}: expected p_split 0 to 1")
        if self.n_parallel < 1:
            raise UsageError(f"n_parallel={self.n_parallel}: expected n_parallel 1 or more")


@dataclass(slots=True)
class _Draft:
    """A draft in progress."""

    stream: Stream
    budget: int
    branches: list[Branch]
    builder: TreeBuilder = field(default_factory=TreeBuilder)

    @property
    def position(self) -> int:
        """Of the first drafted token in the answer."""
        return self.stream.num_answer_tokens

    @property
    def growing(self) -> list[Branch]:
        return [b for b in self.branches if b.unread] if len(self.builder) < self.budget else []


class DraftModelDrafter:
    is_free = False

    def __init__(
        self,
        model: Model,
        options: DraftModelOptions | None = None,
        vocabulary: VocabularyMap | None = None,
        name: str = "model",
    ) -> None:
        """Without a `vocabulary`, the draft's ids are the target's; extra padding rows are allowed."""
        self.name = name
        self.model = model
        self.stops_early = not model.info.extends  # a device drafts a whole chain by itself
        self._options = options or DraftModelOptions()
        self._vocabulary = vocabulary or SameVocabulary(model.info.vocab_size)
        growth = 1 if self._vocabulary.is_identity else 2
        self._cache = DraftCache(model, lambda stream: self._vocabulary.context(stream.tokens), growth)

    def begin(self, stream: Stream) -> None:
        pass  # its prompt is read as the target reads it

    def read_prompts(self, streams: Sequence[Stream], counts: Sequence[int]) -> None:
        self._cache.read_prompts(streams, counts)

    def propose(self, streams: Sequence[Stream], budgets: Sequence[int]) -> list[DraftTree]:
        """One forward pass of the draft model per depth, for all branches of all streams."""
        drafts = [_Draft(s, n, self._cache.follow(s, n)) for s, n in zip(streams, budgets, strict=True)]
        self._cache.catch_up([branch for draft in drafts for branch in draft.branches])
        if self.model.info.extends and self._options.n_parallel == 1 and self._vocabulary.is_identity:
            self._extend([draft for draft in drafts if draft.growing and _can_extend(draft.stream)])
        while growing := [(draft, branch) for draft in drafts for branch in draft.growing]:
            scores = read_on(self.model, [branch for _, branch in growing])
            for (draft, branch), score in zip(growing, scores, strict=True):
                self._grow(draft, branch, self._vocabulary.to_target_row(score.row(ROOT)))
        return [draft.builder.build() for draft in drafts]

    def _extend(self, drafts: Sequence[_Draft]) -> None:
        """Chains that the draft model generates by itself, without the host between two tokens."""
        if not drafts:
            return
        model = cast(ExtendingModel, self.model)
        lines = [draft.branches[0] for draft in drafts]
        extensions = model.extend(
            [
                ExtendRequest(line.sequence, line.unread, draft.budget, draft.stream.sampling, draft.position)
                for draft, line in zip(drafts, lines, strict=True)
            ]
        )
        for draft, line, extension in zip(drafts, lines, extensions, strict=True):
            line.read += [*line.unread, *extension.tokens[:-1]]
            line.unread = []
            for token, chance in zip(extension.tokens, extension.chances, strict=True):
                if chance < self._options.p_min:
                    break
                line.node = draft.builder.add(line.node, token, chance, None)

    def observe(self, observations: Sequence[Observation]) -> None:
        pass  # the next `propose` finds out what was kept

    def end(self, stream: Stream) -> None:
        self._cache.close(stream.id)

    def _grow(self, draft: _Draft, branch: Branch, row: Row) -> None:
        """Adds the branch's next token, and a branch for the second choice if that is likely enough."""
        if len(draft.builder) >= draft.budget:
            return  # earlier branches used up the budget
        can_split = len(draft.branches) < self._options.n_parallel and len(draft.builder) + 2 <= draft.budget
        guesses = self._guesses(draft, branch, row, 2 if can_split else 1)
        lines = [branch]
        if len(guesses) == 2:
            with suppress(CapacityError):  # no room for a branch: the draft stays a chain
                lines.append(branch.fork())
        for line, guess in zip(lines, guesses, strict=False):
            line.node = draft.builder.add(line.node, guess.token, guess.confidence, guess.proposal)
            line.depth += 1
            line.chance *= guess.confidence
            is_worthwhile = line.chance >= draft.stream.least_chance
            line.unread = [self._vocabulary.to_draft_token(guess.token)] if is_worthwhile else []
        draft.branches += lines[1:]

    def _guesses(self, draft: _Draft, branch: Branch, row: Row, count: int) -> list[Guess]:
        """The draft's choice, and perhaps its second choice; none if it is not confident enough to continue."""
        stream, sampling = draft.stream, draft.stream.sampling
        path = draft.builder.path_tokens(branch.node) if sampling.uses_history else ()
        row = processed(row, sampling, stream.history, path)
        position = stream.num_answer_tokens + branch.depth
        if not stream.is_coupled:
            return self._sampled(stream, row, position, count)
        weights = _softmax(row)
        if float(weights.max()) < self._options.p_min:
            return []
        token = sample(row, sampling, position)  # the target's own noise, so that the two match as often as possible
        guesses = [Guess(token, float(weights[token]))]
        weights[token] = 0.0
        second = int(weights.argmax())
        if count > 1 and weights[second] >= self._options.p_split:
            guesses.append(Guess(second, float(weights[second])))
        return guesses

    def _sampled(self, stream: Stream, row: Row, position: int, count: int) -> list[Guess]:
        """Independent samples of the draft's distribution, without replacement.

        Stopping and branching depend only on the distribution, never on the drawn token: otherwise the tokens would not
        have the stated distribution, and the verifier would no longer be lossless.
        """
        q = distribution(row, stream.sampling)
        top, runner_up = (float(p) for p in np.partition(q, -2)[:-3:-1])
        if top < self._options.p_min:
            return []
        seed = stream.sampling.seed
        token = draw(q, seed, position, Domain.DRAFT)
        guesses = [Guess(token, top, q)]
        if count > 1 and runner_up >= max(self._options.p_split, 1e-9):
            rest = q.copy()
            rest[token] = 0.0
            rest /= rest.sum()
            guesses.append(Guess(draw(rest, seed, position, Domain.DRAFT), runner_up, rest))
        return guesses


def _can_extend(stream: Stream) -> bool:
    """Whether the draft may choose tokens on its device: coupled to the target, and with no setting that depends on the
    text.
    """
    return stream.is_coupled and not stream.sampling.changes_logits


def _softmax(row: Row) -> npt.NDArray[np.float32]:
    weights = np.exp(row - row.max())
    return np.asarray(weights / weights.sum(), np.float32)
