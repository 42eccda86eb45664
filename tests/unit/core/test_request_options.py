"""What a request may ask beside sampling and limits: who drafted a token, log probabilities, constraints."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from fakes import AlwaysRight, FakeModel, hashed_logits, letters, plain_tokens
from slipstream.core.engine import Engine
from slipstream.core.logprobs import token_logprobs
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits, RequestOptions
from slipstream.core.tree import DraftTree
from slipstream.errors import UsageError
from slipstream.policy import FixedPolicy

LIMITS = Limits(12, ignore_eos=True)


def engine(draft_length: int = 3) -> Engine:
    model = FakeModel(hashed_logits(32), 32)
    return Engine(model, letters(), AlwaysRight(model=model), FixedPolicy(draft_length))


def test_a_token_knows_who_drafted_it():
    tokens = list(engine().generate([1, 2], limits=LIMITS))
    assert [token.source is not None for token in tokens] == [token.drafted for token in tokens]
    drafted = [token for token in tokens if token.drafted]
    assert drafted and {token.source.drafter for token in drafted if token.source} == {AlwaysRight.name}


@pytest.mark.parametrize("most", [0, 1, 2])
def test_a_request_may_limit_its_drafts(most):
    found = engine().generate([1, 2], limits=LIMITS, options=RequestOptions(max_draft=most)).result()
    assert max(found.stats.drafted_at, default=0) == most
    assert found.tokens == engine().generate([1, 2], limits=LIMITS).result().tokens


def test_options_are_checked():
    for wrong in ({"max_draft": -1}, {"num_logprobs": 1.5}):
        with pytest.raises(UsageError):
            RequestOptions(**wrong)


@pytest.mark.parametrize("draft_length", [0, 3])
def test_log_probabilities_are_those_of_the_model(draft_length):
    asked = engine(draft_length).generate([1, 2], limits=LIMITS, options=RequestOptions(num_logprobs=2))
    seen = [1, 2]
    for token in asked:
        row = hashed_logits(32)(seen).astype(np.float64)
        expected = row - np.log(np.exp(row).sum())
        assert token.logprobs is not None
        assert token.logprobs.logprob == pytest.approx(expected[token.id], abs=1e-6)
        assert [i for i, _ in token.logprobs.top] == np.argsort(-expected)[:2].tolist()
        seen.append(token.id)


def test_log_probabilities_of_no_alternatives():
    assert token_logprobs(np.zeros(4, np.float32), 1, 0).top == ()
    assert len(token_logprobs(np.zeros(4, np.float32), 1, 9).top) == 4


class OnlyEven:
    """A constraint: even tokens alone, and never the one before."""

    def __init__(self) -> None:
        self.prepared: list[list[int]] = []

    def prepare(self, answer: Sequence[int], tree: DraftTree) -> None:
        self.prepared.append(list(answer))

    def restrict(self, row, path):
        said = [*self.prepared[-1], *path]
        forbidden = np.arange(len(row)) % 2 == 1
        forbidden[said[-1:]] = True
        return np.where(forbidden, np.float32(-np.inf), row)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_constraint_holds_and_the_text_does_not_depend_on_the_draft(temperature):
    texts = []
    for draft_length in (0, 3):
        constraint = OnlyEven()
        asked = engine(draft_length).generate(
            [1, 2], Sampling(temperature, seed=4), LIMITS, options=RequestOptions(constraint=constraint)
        )
        texts.append(asked.result().tokens)
        assert constraint.prepared[0] == []
    assert texts[0] == texts[1]
    assert all(token % 2 == 0 for token in texts[0])
    assert all(a != b for a, b in zip(texts[0], texts[0][1:], strict=False))


def test_a_prompt_may_be_read_whole_although_it_is_cached():
    model = FakeModel(hashed_logits(32), 32, remembers=True)
    runs = Engine(model, letters())
    for is_cold, reused in ((False, 0), (False, 5), (True, 0)):
        options = RequestOptions(is_cold=is_cold)
        answer = runs.generate([1, 2, 3, 4, 5, 6], limits=LIMITS, options=options).result()
        assert answer.stats.num_reused == reused
    assert answer.tokens == plain_tokens(model.logits, [1, 2, 3, 4, 5, 6], Sampling(), 12)
