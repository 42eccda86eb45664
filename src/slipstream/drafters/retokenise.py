"""A draft model that shares few tokens with the target: it drafts text, and the text is retokenised."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.core.protocols import Model
from slipstream.core.stream import Observation, Stream
from slipstream.core.tree import EMPTY_TREE, ROOT, DraftTree
from slipstream.drafters.draft_cache import Branch, DraftCache, read_on
from slipstream.drafters.vocabulary import TokenTexts, retokenised

_RECENT = 8  # tokens of the stream that are joined with the drafted text before retokenising


class RetokenisingDrafter:
    """Drafts greedily, since another vocabulary can't share the target's noise. The last token is dropped: it may be
    incomplete.
    """

    name = "translate"
    is_free = False

    def __init__(self, model: Model, draft_texts: TokenTexts, target_texts: TokenTexts) -> None:
        self.model = model
        self._draft, self._target = draft_texts, target_texts
        self._cache = DraftCache(model, lambda s: retokenised(s.tokens, target_texts, draft_texts), growth=2)

    def begin(self, stream: Stream) -> None:
        pass  # its prompt is read as the target reads it

    def read_prompts(self, streams: Sequence[Stream], counts: Sequence[int]) -> None:
        self._cache.read_prompts(streams, counts)

    def propose(self, streams: Sequence[Stream], budgets: Sequence[int]) -> list[DraftTree]:
        lines: list[list[int]] = [[] for _ in streams]
        branches = [self._cache.follow(s, n + 1) for s, n in zip(streams, budgets, strict=True)]
        self._cache.catch_up([branch for of_stream in branches for branch in of_stream])
        while growing := self._growing(branches, lines, budgets):
            scores = read_on(self.model, [branch for branch, _ in growing])
            for (branch, i), score in zip(growing, scores, strict=True):
                token = score.argmax(ROOT)
                if not self._draft.is_special(token):
                    lines[i].append(token)
                    branch.unread = [token]
        return [self._in_target(s, line, n) for s, line, n in zip(streams, lines, budgets, strict=True)]

    def _growing(
        self, branches: list[list[Branch]], lines: list[list[int]], budgets: Sequence[int]
    ) -> list[tuple[Branch, int]]:
        return [(b[0], i) for i, b in enumerate(branches) if b and b[0].unread and len(lines[i]) <= budgets[i]]

    def _in_target(self, stream: Stream, line: list[int], budget: int) -> DraftTree:
        """The drafted text, tokenised as the target's tokenizer would after the stream's last tokens."""
        text = self._draft.decode(line).rstrip("\ufffd")
        if not text:
            return EMPTY_TREE
        recent = stream.tokens[-_RECENT:]
        joined = self._target.encode(self._target.decode(recent) + text)
        start = self._target.encode(self._target.decode(recent))
        tokens = joined[len(start) :] if joined[: len(start)] == start else self._target.encode(text)
        return DraftTree.chain(tokens[:-1][:budget], [0.5] * len(tokens[:-1][:budget]))

    def observe(self, observations: Sequence[Observation]) -> None:
        pass

    def end(self, stream: Stream) -> None:
        self._cache.close(stream.id)
