"""Worlds of `fakes.FakeModel`: thousands of answers a minute, and a model that refuses what the protocol forbids."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np

from fakes import FakeModel, FakeTokenizer, Logits, Row, hashed_logits
from fuzz.request import Bounds
from fuzz.world import World
from slipstream.core.protocols import Model
from slipstream.drafters import DraftSources

_LETTERS = "abcd"
_SPECS = (
    "same:ngram",
    "same:ngram(min_n=2,max_n=3)",
    "same:suffix",
    "same:suffix(width=3,depth=6)",
    "same:model",
    "same:model(n_parallel=3,p_split=0.05)",
    "same:model(n_parallel=2,p_min=0.2)",
    "same:chained:ngram,suffix",
    "same:chained:suffix(width=2),model",
    "other:translate",
    "other:translate(min_overlap=2.0)",
)


class FakeWorlds:
    """A new world for every case: fakes cost nothing."""

    backend = "fake"

    def world(self, rng: random.Random) -> World:
        vocab = rng.choice([4, 9, 32, 61])
        logits = hashed_logits(vocab, rng.randrange(1 << 30), rng.choice([1, 2, 3]), rng.choice([1.0, 2.0, 6.0]))
        context = rng.choice([40, 96, 256])
        is_roomy = rng.random() < 0.7
        target = FakeModel(
            logits, vocab, context=context, max_rows=rng.choice([16, 48, 128]), name="fake target",
            remembers=rng.random() < 0.5,
            max_sequences=10_000 if is_roomy else rng.choice([1, 2, 3]),
            max_tokens=10_000_000 if is_roomy else rng.choice([context // 2, context, context + 20, context + 100]),
        )  # fmt: skip
        tokenizer = _tokenizer(rng, vocab)
        return World(
            name=f"fake vocab={vocab} context={context}",
            target=target,
            tokenizer=tokenizer,
            logits=lambda: nullcontext(logits),
            bounds=Bounds(vocab, context, 32, 16, _LETTERS),
            sources=_sources(rng, target, tokenizer, logits, context),
            specs=_SPECS,
            is_roomy=is_roomy,
            is_thread_safe=False,
            capacity=target.max_tokens,
            engine_options={"prefill_chunk": rng.choice([3, 16, 512]), "max_streams": rng.choice([2, 4, 32])},
        )

    def discard(self) -> None:
        pass


def _tokenizer(rng: random.Random, vocab: int) -> FakeTokenizer:
    """Pieces of one to three letters, so that stop strings cross the borders of tokens."""
    pieces = list(_LETTERS)
    while len(pieces) < vocab:
        piece = "".join(rng.choice(_LETTERS) for _ in range(rng.randint(2, 4)))
        if piece not in pieces:
            pieces.append(piece)
    return FakeTokenizer(pieces[:vocab], eos=rng.choice([None, rng.randrange(4, vocab) if vocab > 4 else None]))


def _sources(
    rng: random.Random, target: FakeModel, tokenizer: FakeTokenizer, logits: Logits, context: int
) -> dict[str, DraftSources]:
    def source(draft: Model, texts: FakeTokenizer, same: bool) -> DraftSources:
        return DraftSources(target, tokenizer, draft, draft_texts=texts, same_vocabulary=same)  # type: ignore[arg-type]

    vocab = target.info.vocab_size
    small = {"context": context, "max_rows": rng.choice([16, 128]), "remembers": rng.random() < 0.5}
    if rng.random() < 0.3:  # a draft model without room for all streams
        small["max_sequences"] = 2
    other = FakeTokenizer(list(reversed(tokenizer.pieces)), None)
    same = FakeModel(_blurred(logits, rng.choice([0.0, 0.5, 2.0])), vocab, **small, name="fake draft")
    reverse = FakeModel(lambda tokens: logits([vocab - 1 - t for t in tokens])[::-1], vocab, **small, name="fake other")
    broken = FakeModel(lambda tokens: np.full(vocab, np.nan, np.float32), vocab, **small, name="fake nan")
    return {
        "same": source(same, tokenizer, True),
        "other": source(reverse, other, False),
        "nan": source(broken, tokenizer, True),
    }


def _blurred(logits: Logits, amount: float) -> Logits:
    """Nearly the same logits: a draft model that is right often."""
    noise = hashed_logits(1, 7)

    def blurred(tokens: Sequence[int]) -> Row:
        row = np.array(logits(tokens))
        return (row + amount * np.sin(np.arange(len(row)) + 9 * float(noise(tokens)[0]))).astype(np.float32)

    return blurred
