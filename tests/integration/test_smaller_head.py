"""`model(head=N)`: a draft that says only the first ids of its vocabulary reads a smaller head, and changes no text."""

from __future__ import annotations

import numpy as np
import pytest

import slipstream
from contract.tiny_models import load_smollm2
from slipstream.core.protocols import ScoreRequest
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.core.tree import ROOT
from slipstream.errors import UsageError

pytestmark = pytest.mark.real_model


def test_its_logits_are_the_first_of_the_whole_and_it_reads_every_id() -> None:
    model = load_smollm2().model
    smaller = model.first_tokens(4096)  # type: ignore[attr-defined]
    assert smaller.info.vocab_size == 4096
    assert smaller.info.weight_bytes < model.info.weight_bytes
    tokens = [40_000, 5, 48_000, 17]  # beyond the head
    rows = []
    for m in (model, smaller):
        place = m.open([], 16)
        rows.append(m.score([ScoreRequest(place, tokens)])[0].row(ROOT).copy())
        place.close()
    np.testing.assert_array_equal(rows[0][:4096], rows[1])


def test_a_draft_with_a_smaller_head_changes_no_text() -> None:
    model = load_smollm2()
    limits = Limits(max_tokens=40)
    prompt = "The three primary colours are"
    plain = slipstream.load(model, drafter="none").generate(prompt, Sampling(), limits).result()
    engine = slipstream.load(model, draft=model, drafter="model(head=8192)", policy="fixed(4)")
    done = engine.generate(prompt, Sampling(), limits).result()
    assert done.tokens == plain.tokens
    assert done.stats.num_accepted > 20  # its first 8192 ids are what English is made of
    model.model.forget_prompts()


@pytest.mark.parametrize("head", [5, 100_000, 4097])
def test_a_head_that_cannot_be_is_refused(head: int) -> None:
    model = load_smollm2()
    with pytest.raises(UsageError, match=f"head of {head} tokens"):
        slipstream.load(model, draft=model, drafter=f"model(head={head})")
