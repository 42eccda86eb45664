"""Fakes shared by the tests: a model with fixed logits, tokenizers over a handful of pieces, drafters of every kind.

The model is strict: it refuses what the protocol forbids (stale scores, closed sequences, too many rows, a path that
is no path), so that a test that passes with it shows that its caller keeps the contract.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from slipstream.core.protocols import ModelInfo, ScoreRequest
from slipstream.core.sampling import History, Sampling, processed, sample
from slipstream.core.stream import Limits, Observation, Stream
from slipstream.core.text import TextAssembler
from slipstream.core.tree import EMPTY_TREE, ROOT, DraftTree, TreeBuilder
from slipstream.core.verify import VERIFIERS
from slipstream.errors import CapacityError

Row = npt.NDArray[np.float32]
Logits = Callable[[Sequence[int]], Row]  # tokens so far -> [vocab] logits of the next one


# -- models -------------------------------------------------------------------------------------------------------


def hashed_logits(vocab: int, seed: int = 0, order: int = 2, scale: float = 2.0) -> Logits:
    """Random logits that depend on the last `order` tokens alone."""
    rows: dict[tuple[int, ...], Row] = {}

    def logits(tokens: Sequence[int]) -> Row:
        key = tuple(tokens[-order:])
        if key not in rows:
            random = np.random.default_rng([seed, *(t + 1 for t in key)])
            rows[key] = (random.standard_normal(vocab) * scale).astype(np.float32)
            rows[key].setflags(write=False)
        return rows[key]

    return logits


def cycle_logits(cycle: Sequence[int], vocab: int, sharp: float = 8.0) -> Logits:
    """Always the next token of a cycle of distinct tokens, almost surely."""
    following = {token: cycle[(i + 1) % len(cycle)] for i, token in enumerate(cycle)}

    def logits(tokens: Sequence[int]) -> Row:
        row = np.zeros(vocab, np.float32)
        row[following.get(tokens[-1], cycle[0])] = sharp
        return row

    return logits


class FakeScores:
    """Rows of one request. Refuses to be read after the model's next score."""

    def __init__(self, rows: Callable[[int], Row], is_fresh: Callable[[], bool] = lambda: True) -> None:
        self._rows = rows
        self._is_fresh = is_fresh

    def row(self, node: int) -> Row:
        assert self._is_fresh(), "scores were read after the model's next score"
        row = np.array(self._rows(node), np.float32)
        row.setflags(write=False)
        return row

    def argmax(self, node: int) -> int:
        return int(self.row(node).argmax())

    def chosen(self, node: int) -> int | None:
        return None


class FakeSequence:
    def __init__(self, model: FakeModel, tokens: Iterable[int], reserve: int) -> None:
        self.model = model
        self.tokens = list(tokens)
        self.reserve = reserve
        self.scored: ScoreRequest | None = None
        self.closed = False

    @property
    def length(self) -> int:
        return len(self.tokens)

    def commit(self, path: Sequence[int] = ()) -> None:
        assert not self.closed, "commit on a closed sequence"
        assert self.scored is not None, "commit without a score"
        node = ROOT
        for child in path:
            assert self.scored.tree.parents[child] == node, f"{path} is no path of the draft"
            node = child
        self.tokens += [*self.scored.pending, *(self.scored.tree.tokens[i] for i in path)]
        self.scored = None

    def rewind(self, length: int) -> None:
        assert not self.closed and 0 <= length <= self.length
        del self.tokens[length:]
        self.scored = None

    def fork(self) -> FakeSequence:
        assert not self.closed
        return self.model._new_sequence(self.tokens, self.reserve)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.model._closed(self)


class FakeModel:
    """Next-token logits are a pure function of the tokens so far, along the path in a tree."""

    def __init__(
        self,
        logits: Logits | None = None,
        vocab: int = 32,
        *,
        context: int = 512,
        max_rows: int = 128,
        max_sequences: int = 10_000,
        max_tokens: int = 10_000_000,
        remembers: bool = False,
        name: str = "fake",
    ) -> None:
        self.logits = logits or hashed_logits(vocab)
        self.info = ModelInfo(name, "fake", "cpu", "float32", vocab, context, 1000, True, max_rows)
        self.max_sequences, self.max_tokens = max_sequences, max_tokens
        self.remembers = remembers
        self.open_sequences: list[FakeSequence] = []
        self.kept: list[list[int]] = []
        self.num_opened = 0
        self.num_scores = 0
        self.num_rows = 0
        self.rows_by_score: list[int] = []
        self.rows_read: Counter[tuple[int, ...]] = Counter()  # pending tokens with all before them
        self.fails_at: int | None = None  # the score call that raises, counted from 1

    def open(self, tokens: Sequence[int] = (), reserve: int = 0) -> FakeSequence:
        known = 0
        if self.remembers and tokens:
            texts = [*self.kept, *(sequence.tokens for sequence in self.open_sequences)]
            known = max((_shared(tokens[:-1], text) for text in texts), default=0)
        return self._new_sequence(tokens[:known], reserve)

    def can_open(self, reserve: int) -> bool:
        used = sum(s.reserve for s in self.open_sequences)
        return len(self.open_sequences) < self.max_sequences and used + reserve <= self.max_tokens

    def forget_prompts(self) -> None:
        self.kept.clear()

    def diagnose(self) -> str:
        return "it is a fake"

    def score(self, requests: Sequence[ScoreRequest]) -> list[FakeScores]:
        self.num_scores += 1
        if self.fails_at == self.num_scores:
            raise RuntimeError("the device fell off the bus")
        rows = sum(r.num_rows for r in requests)
        assert requests and 0 < rows <= self.info.max_rows, f"{rows} rows, {self.info.max_rows} at most"
        assert len({id(r.sequence) for r in requests}) == len(requests), "a sequence is scored twice"
        self.num_rows += rows
        self.rows_by_score.append(rows)
        return [self._score_one(r) for r in requests]

    def _score_one(self, request: ScoreRequest) -> FakeScores:
        sequence, pending, tree = request.sequence, list(request.pending), request.tree
        assert isinstance(sequence, FakeSequence) and sequence.model is self and not sequence.closed
        assert pending, "nothing is pending"
        assert all(0 <= t < self.info.vocab_size for t in [*pending, *tree.tokens]), "a token outside the vocabulary"
        length = sequence.length + len(pending) + max(tree.depths(), default=0)
        assert length <= self.info.context_length, f"{length} tokens in a context of {self.info.context_length}"
        assert not sequence.reserve or length <= sequence.reserve, f"{length} tokens, {sequence.reserve} reserved"
        for end in range(1, len(pending) + 1):
            self.rows_read[tuple(sequence.tokens + pending[:end])] += 1
        sequence.scored = ScoreRequest(sequence, pending, tree)
        call, before = self.num_scores, sequence.tokens + pending
        return FakeScores(lambda node: self.logits(before + tree.path_tokens(node)), lambda: self.num_scores == call)

    def _new_sequence(self, tokens: Sequence[int], reserve: int) -> FakeSequence:
        if not self.can_open(reserve):
            raise CapacityError("the fake is full")
        sequence = FakeSequence(self, tokens, reserve)
        self.open_sequences.append(sequence)
        self.num_opened += 1
        return sequence

    def _closed(self, sequence: FakeSequence) -> None:
        self.open_sequences.remove(sequence)
        if self.remembers:
            self.kept.append(list(sequence.tokens))


def _shared(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def plain_tokens(
    logits: Logits, prompt: Sequence[int], sampling: Sampling, count: int, stop: Iterable[int] = ()
) -> list[int]:
    """What plain decoding answers: the definition that everything else is held against."""
    tokens, history = list(prompt), History(prompt)
    stop = set(stop)
    for position in range(count):
        row = processed(np.array(logits(tokens), np.float32), sampling, history, ())
        tokens.append(sample(row, sampling, position))
        history.extend(tokens[-1:])
        if tokens[-1] in stop:
            break
    return tokens[len(prompt) :]


# -- tokenizers ---------------------------------------------------------------------------------------------------


class _Decoder:
    def __init__(self, tokenizer: FakeTokenizer) -> None:
        self._tokenizer = tokenizer

    def push(self, token: int) -> str:
        return self._tokenizer.decode([token])

    def flush(self) -> str:
        return ""


class FakeTokenizer:
    """A list of pieces; the longest piece that fits comes first. Token `eos` is special and has no text."""

    def __init__(self, pieces: Sequence[str], eos: int | None = None) -> None:
        self.pieces = list(pieces)
        self.eos_ids = frozenset() if eos is None else frozenset({eos})
        self._ids = {piece: i for i, piece in enumerate(self.pieces) if i not in self.eos_ids}

    @property
    def vocab_size(self) -> int:
        return len(self.pieces)

    def is_special(self, token: int) -> bool:
        return token in self.eos_ids

    def token_bytes(self, token: int) -> bytes:
        return self.pieces[token].encode()

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.pieces[i] for i in ids if i not in self.eos_ids)

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        ids = []
        while text:
            size = next(n for n in range(len(text), 0, -1) if text[:n] in self._ids)
            ids.append(self._ids[text[:size]])
            text = text[size:]
        return ids

    def prompt_ids(self, text: str) -> list[int]:
        return self.encode(text)

    def chat_ids(self, messages: Sequence[dict[str, str]]) -> list[int]:
        return self.encode("".join(message["content"] for message in messages))

    def stream_decoder(self) -> _Decoder:
        return _Decoder(self)


ALPHABET = "abcdefghijklmnopqrstuvwxyz .,;:!"


def letters(vocab: int = 32, eos: int | None = None) -> FakeTokenizer:
    """One character a token."""
    return FakeTokenizer([ALPHABET[i] if i < len(ALPHABET) else chr(0x4E00 + i) for i in range(vocab)], eos)


# -- streams and drafters -----------------------------------------------------------------------------------------


def tree_of(*paths: Sequence[int]) -> DraftTree:
    """A tree of paths; those that share a beginning are merged."""
    builder = TreeBuilder()
    for path in paths:
        node = ROOT
        for token in path:
            node = builder.add(node, token)
    return builder.build()


def make_stream(
    prompt: Sequence[int],
    sampling: Sampling | None = None,
    limits: Limits | None = None,
    drafter: object = None,
    verifier: str = "matching",
    vocab: int = 32,
) -> Stream:
    assembler = TextAssembler(letters(vocab).stream_decoder())
    return Stream(prompt, sampling or Sampling(), limits or Limits(), assembler, drafter, VERIFIERS[verifier])  # type: ignore[arg-type]


def grow(stream: Stream, tokens: Iterable[int]) -> None:
    """Lets a stream receive tokens, as the engine would."""
    for token in tokens:
        stream.receive(token, drafted=False, end_tokens=frozenset())


@dataclass
class FakeDrafter:
    """Proposes nothing, and notes what it is told."""

    name: str = "fake"
    is_free: bool = True
    begun: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)
    num_proposals: int = 0

    def begin(self, stream: Stream) -> None:
        self.begun.append(stream.id)

    def propose(self, streams: Sequence[Stream], budgets: Sequence[int]) -> list[DraftTree]:
        self.num_proposals += len(streams)
        return [self.propose_one(s, n) for s, n in zip(streams, budgets, strict=True)]

    def propose_one(self, stream: Stream, budget: int) -> DraftTree:
        return EMPTY_TREE

    def observe(self, observations: Sequence[Observation]) -> None:
        self.observations += observations

    def end(self, stream: Stream) -> None:
        self.ended.append(stream.id)


def target_tokens(model: FakeModel, stream: Stream, count: int, path: Sequence[int] = ()) -> list[int]:
    """What the target will choose next, and next to that: a drafter that knows everything."""
    tokens = [*stream.tokens, *path]
    found: list[int] = []
    for _ in range(count):
        row = processed(np.array(model.logits(tokens)), stream.sampling, stream.history, [*path, *found])
        found.append(sample(row, stream.sampling, stream.num_answer_tokens + len(path) + len(found)))
        tokens.append(found[-1])
    return found


@dataclass
class KnowingDrafter(FakeDrafter):
    """Knows the model that it drafts for."""

    model: FakeModel = field(kw_only=True)


@dataclass
class AlwaysRight(KnowingDrafter):
    """Knows the model and its noise: every drafted token is accepted."""

    def propose_one(self, stream: Stream, budget: int) -> DraftTree:
        return DraftTree.chain(target_tokens(self.model, stream, budget))


@dataclass
class AlwaysWrong(KnowingDrafter):
    """Knows the model, and proposes something else."""

    def propose_one(self, stream: Stream, budget: int) -> DraftTree:
        right = target_tokens(self.model, stream, budget)
        return DraftTree.chain((token + 1) % self.model.info.vocab_size for token in right)


@dataclass
class Sometimes(KnowingDrafter):
    """Right with probability `p` at each token, wrong otherwise; goes on after a wrong one."""

    p: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)

    def propose_one(self, stream: Stream, budget: int) -> DraftTree:
        path: list[int] = []
        for _ in range(budget):
            token = target_tokens(self.model, stream, 1, path)[0]
            path.append(token if self._random.random() < self.p else (token + 1) % self.model.info.vocab_size)
        return DraftTree.chain(path)


@dataclass
class RandomTrees(KnowingDrafter):
    """Trees of random shape whose nodes are right about every second time."""

    seed: int = 0

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)

    def propose_one(self, stream: Stream, budget: int) -> DraftTree:
        builder = TreeBuilder()
        for _ in range(int(self._random.integers(0, budget + 1))):
            parent = int(self._random.integers(-1, len(builder)))
            if self._random.random() < 0.5:
                token = target_tokens(self.model, stream, 1, builder.path_tokens(parent))[0]
            else:
                token = int(self._random.integers(self.model.info.vocab_size))
            builder.add(parent, token, float(self._random.random()))
        return builder.build()


@dataclass
class Scripted(FakeDrafter):
    """Proposes what a function of stream and budget says."""

    script: Callable[[Stream, int], DraftTree] = lambda stream, budget: EMPTY_TREE

    def propose_one(self, stream: Stream, budget: int) -> DraftTree:
        return self.script(stream, budget)


class Crashing:
    """A drafter whose `method` raises on its nth call."""

    name = "crashing"
    is_free = True

    def __init__(self, inner: FakeDrafter, method: str, nth: int = 1) -> None:
        self.inner = inner
        self._method, self._nth = method, nth
        self._calls: Counter[str] = Counter()

    def _enter(self, method: str) -> None:
        self._calls[method] += 1
        if method == self._method and self._calls[method] >= self._nth:
            raise RuntimeError(f"crash in {method}")

    def begin(self, stream: Stream) -> None:
        self._enter("begin")
        self.inner.begin(stream)

    def propose(self, streams: Sequence[Stream], budgets: Sequence[int]) -> list[DraftTree]:
        self._enter("propose")
        return self.inner.propose(streams, budgets)

    def observe(self, observations: Sequence[Observation]) -> None:
        self._enter("observe")
        self.inner.observe(observations)

    def end(self, stream: Stream) -> None:
        self._enter("end")
        self.inner.end(stream)


@dataclass
class Oversized(KnowingDrafter):
    """Right, but proposes more than it was asked for."""

    extra: int = 7

    def propose_one(self, stream: Stream, budget: int) -> DraftTree:
        return DraftTree.chain(target_tokens(self.model, stream, budget + self.extra))


@dataclass
class BadTokens(KnowingDrafter):
    """Right at first, then an id that the target does not have."""

    bad: int = -3
    at: int = 1

    def propose_one(self, stream: Stream, budget: int) -> DraftTree:
        tokens = target_tokens(self.model, stream, budget)
        return DraftTree.chain(self.bad if i == self.at else token for i, token in enumerate(tokens))
