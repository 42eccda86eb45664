"""Grammars: answers that have to be JSON, or fit a schema. llguidance says which tokens may follow.

A grammar restricts the logits and nothing else, so drafts are verified as always, and the text is the same with and
without speculation. Masks are computed in other threads while the target's forward pass runs.
"""

from __future__ import annotations

import functools
import itertools
import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from slipstream.core.prefix import common_prefix_length
from slipstream.core.sampling import Row
from slipstream.core.tree import ROOT, DraftTree
from slipstream.errors import SlipstreamError
from slipstream.models.text.tokenizer import Tokenizer
from slipstream.server.refusals import Refusal, bad_field
from slipstream.server.settings import BOUNDS

Allowed = npt.NDArray[np.bool_]  # [vocab]

_MASK_THREADS = 2
_KEPT_GRAMMARS = 64
# One spelling of white space: small models otherwise fill the answer with line breaks, and more tokens are forced.
_JSON_LAYOUT = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
_LIMITS = LLParserLimits(verbose_errors=False)  # errors must not repeat parts of the request
ANY_OBJECT: dict[str, Any] = {"type": "object"}


class GrammarError(SlipstreamError):
    """The grammar allows no token any more, or became too complex."""


class GrammarConstraint:
    """The grammar of one stream. Used by one thread at a time: whoever needs it waits for the masks in preparation."""

    def __init__(self, matcher: LLMatcher, vocab_size: int, end_ids: frozenset[int], pool: ThreadPoolExecutor) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size  # columns of the logits
        self._end_ids = end_ids  # never read: the matcher would not count them when it goes back
        self._pool = pool
        self._read: list[int] = []  # the tokens that the matcher has read
        self._masks: dict[tuple[int, ...], Allowed] = {}  # by the path after the answer
        self._preparing: Future[None] | None = None

    def prepare(self, answer: Sequence[int], tree: DraftTree) -> None:
        self._wait()
        self._masks = {}
        self._preparing = self._pool.submit(self._fill, list(answer), tree)

    def restrict(self, row: Row, path: Sequence[int]) -> Row:
        """Raises GrammarError."""
        self._wait()
        allowed = self._masks.get(tuple(path))
        if allowed is None:
            raise GrammarError("the grammar has no continuation here")
        return np.where(allowed[: len(row)], row, np.float32(-np.inf))

    def forced(self, answer: Sequence[int]) -> list[int]:
        self._wait()
        self._go_to(answer)
        is_over = len(self._read) < len(answer) or self._matcher.is_stopped()
        return [] if is_over else list(self._matcher.compute_ff_tokens())

    def _wait(self) -> None:
        if self._preparing:
            preparing, self._preparing = self._preparing, None
            preparing.result()

    def _go_to(self, answer: Sequence[int]) -> None:
        wanted = list(itertools.takewhile(lambda token: token not in self._end_ids, answer))
        kept = common_prefix_length(self._read, wanted)
        self._matcher.rollback(len(self._read) - kept)
        self._matcher.consume_tokens(wanted[kept:])
        self._read = wanted

    def _fill(self, answer: list[int], tree: DraftTree) -> None:
        """The masks after the answer and after each node of the draft that the grammar allows."""
        self._go_to(answer)
        fill = self._fill_below if len(self._read) == len(answer) else self._fill_after_end
        fill(tree, ROOT, ())

    def _fill_below(self, tree: DraftTree, node: int, path: tuple[int, ...]) -> None:
        allowed = self._masks[path] = self._mask()
        for child in tree.children(node):
            token = tree.tokens[child]
            if token in self._end_ids:
                self._fill_after_end(tree, child, (*path, token))
            elif allowed[token] and self._matcher.consume_token(token):
                self._fill_below(tree, child, (*path, token))
                self._matcher.rollback(1)

    def _fill_after_end(self, tree: DraftTree, node: int, path: tuple[int, ...]) -> None:
        """Only another end may follow one, where a request ignores it."""
        self._masks[path] = np.isin(np.arange(self._vocab_size), list(self._end_ids))
        for child in tree.children(node):
            self._fill_after_end(tree, child, (*path, tree.tokens[child]))

    def _mask(self) -> Allowed:
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise GrammarError("the grammar became too complex, or allows no token any more")
        allowed = np.unpackbits(bits, bitorder="little").astype(np.bool_)
        missing = self._vocab_size - len(allowed)  # rows that pad the vocabulary
        return np.pad(allowed, (0, missing)) if missing > 0 else allowed


class Grammars:
    """Makes constraints. A grammar that was used before is not compiled again."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._lock = threading.Lock()
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._pool = ThreadPoolExecutor(_MASK_THREADS, "slipstream-masks")

    def for_schema(self, schema: Mapping[str, Any], param: str) -> GrammarConstraint:
        """Raises Refusal for a schema that is too large, wrong, or has keywords that are not supported."""
        check_sizes({param: schema})
        try:
            grammar = LLMatcher.grammar_from_json_schema(dict(schema), overrides=_JSON_LAYOUT)  # type: ignore[arg-type]
        except ValueError as error:
            raise Refusal(400, f"{param}: {error}", param=param) from None
        return self._constraint(grammar, param)

    def for_lark(self, lark: str, param: str) -> GrammarConstraint:
        return self._constraint(LLMatcher.grammar_from_lark(lark), param)

    def _constraint(self, grammar: str, param: str) -> GrammarConstraint:
        with self._lock:
            matcher = self._compiled.get(grammar)
            if matcher is None:
                matcher = LLMatcher(self._vocabulary, grammar, log_level=0, limits=_LIMITS)
                if matcher.is_error():
                    message = matcher.get_error().splitlines()[0][:300]
                    raise Refusal(400, f"{param}: not supported as a grammar: {message}", param=param)
                self._compiled[grammar] = matcher
            self._compiled.move_to_end(grammar)
            if len(self._compiled) > _KEPT_GRAMMARS:
                self._compiled.popitem(last=False)
            return GrammarConstraint(matcher.deep_copy(), self._vocab_size, self._tokenizer.eos_ids, self._pool)

    @functools.cached_property
    def _vocabulary(self) -> LLTokenizer:
        source = _TokenSource(self._tokenizer)
        return LLTokenizer(TokenizerWrapper(source), n_vocab=len(source.tokens), eos_token=source.end_ids)


class _TokenSource:
    """A tokenizer as llguidance wants it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.end_ids = sorted(tokenizer.eos_ids)
        self.eos_token_id = tokenizer.eos_id if tokenizer.eos_id is not None else self.end_ids[0]
        self.bos_token_id = tokenizer.bos_id
        self.special_token_ids = sorted(tokenizer.vocabulary.special)
        self.tokens = [tokenizer.vocabulary.spelled_bytes(token) for token in range(tokenizer.vocab_size)]

    def __call__(self, text: bytes) -> list[int]:
        return self._tokenizer.encode(text.decode("utf-8", "replace"))


def check_sizes(schemas: Mapping[str, Mapping[str, Any]]) -> None:
    """By the names of their fields. Raises Refusal for one that is too large, and for too much of all together."""
    total = 0
    for param, schema in schemas.items():
        if _depth(schema) > BOUNDS.schema_depth:
            raise bad_field(param, f"{param}: nested more than {BOUNDS.schema_depth} deep")
        size = len(json.dumps(schema))
        if size > BOUNDS.schema_bytes:
            raise bad_field(param, f"{param}: longer than {BOUNDS.schema_bytes:,} bytes")
        total += size
        if total > BOUNDS.schemas_bytes:
            raise bad_field(param, f"{param}: the schemas up to this one have more than {BOUNDS.schemas_bytes:,} bytes")


def _depth(value: Any) -> int:
    """Counts level by level, so that no nesting is too deep for it. Stops counting beyond the bound."""
    level, depth = [value], 0
    while level and depth <= BOUNDS.schema_depth:
        depth += 1
        inner = [v.values() if isinstance(v, Mapping) else v for v in level if isinstance(v, Mapping | list)]
        level = [item for items in inner for item in items]
    return depth
