"""The draft head that comes with the built-in model."""

from __future__ import annotations

import pytest

import slipstream
from slipstream.backends.torch.cpu.weights import NativeLinear
from slipstream.models.draft_heads.files import check_finite, open_head
from slipstream.models.sources.builtin import builtin_head

pytestmark = pytest.mark.real_model
MAX_BYTES = 16_000_000


def test_it_is_small_and_whole() -> None:
    folder = builtin_head("smollm2-135m")
    assert folder is not None and builtin_head("other") is None
    head = open_head(folder, "head")
    check_finite(head)
    assert sum(file.stat().st_size for file in folder.iterdir()) < MAX_BYTES
    assert head.quantised("lm_head.weight") is not None


def test_named_without_a_folder_it_drafts_and_the_text_is_the_same(smollm2: slipstream.LoadedModel) -> None:
    ids = smollm2.tokenizer.chat_ids([{"role": "user", "content": "Tom has 3 boxes with 12 eggs each. How many eggs?"}])
    plain = slipstream.load(smollm2, drafter="none").generate(ids, max_tokens=60).result()
    for drafter in ("head", "chained:suffix,head", "head(width=3)"):
        drafted = slipstream.load(smollm2, drafter=drafter, policy="fixed(4)").generate(ids, max_tokens=60).result()
        assert drafted.tokens == plain.tokens
        assert drafted.stats.num_accepted > 20, drafter


def test_what_it_drafts_by_rough_products_is_what_exact_ones_give(
    smollm2: slipstream.LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their likeliest tokens are computed exactly: 60 drafts of four, token by token."""
    prompt = [{"role": "user", "content": "Write about the sea, the wind and a small boat."}]
    drafted = []
    for is_rough in (True, False):
        if not is_rough:
            monkeypatch.setattr(NativeLinear, "rough", lambda weight, packer: None)
        engine = slipstream.load(smollm2, drafter="head", policy="fixed(4)")
        monkeypatch.setattr(engine.drafter.head._ops, "_head", None)  # which keeps them
        tokens: list[int] = []
        propose = engine.drafter.propose

        def recorded(streams, budgets, propose=propose, tokens=tokens):
            trees = propose(streams, budgets)
            tokens += [token for tree in trees for token in tree.tokens]
            return trees

        monkeypatch.setattr(engine.drafter, "propose", recorded)
        engine.generate(prompt, max_tokens=120).result()
        drafted.append(tokens)
    assert len(drafted[0]) > 150
    assert drafted[0] == drafted[1]


def test_it_drafts_behind_suffix_unless_told_otherwise(smollm2: slipstream.LoadedModel) -> None:
    engine = slipstream.load(smollm2, policy="fixed(4)")
    assert engine.drafter is not None and engine.drafter.name == "chained:suffix,head"
    answer = engine.generate([{"role": "user", "content": "Why is the sky blue?"}], max_tokens=60).result()
    assert answer.stats.num_accepted > 10
