"""Tune tries what suits the models that are here: free drafters, draft models, heads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from slipstream.errors import UsageError
from slipstream.loading import LoadedPair
from slipstream.tasks import tune
from slipstream.tasks.models import Models
from slipstream.tasks.options import ModelOptions

FREE = {("ngram", None), ("suffix", None), ("suffix(width=3)", None)}
OWN_HEAD = {("head", None), ("chained:suffix,head", None)}


@pytest.fixture(autouse=True)
def same_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "drafter_for", lambda target, draft: draft.drafter)


def loaded(own_head: str | None = None, draft: str | None = None, head: str | None = None) -> Models:
    target: Any = SimpleNamespace(own_head=own_head)
    helper: Any = SimpleNamespace(drafter=draft) if draft else None
    return Models(LoadedPair(target, helper, head), ModelOptions())


def tried(models: dict[str | None, Models], *drafters: str) -> set[tuple[str, str | None]]:
    candidates = tune._candidates(drafters, models)
    assert candidates[0] == tune.OFF
    return {(one.drafter, one.draft) for one in candidates[1:]}


def test_a_model_alone_tries_free_drafters_and_its_own_head() -> None:
    assert tried({None: loaded()}) == FREE
    assert tried({None: loaded(own_head="h")}) == FREE | OWN_HEAD


def test_each_draft_is_tried_as_what_it_is() -> None:
    models = {None: loaded(), "small": loaded(draft="model"), "other": loaded(draft="translate"), "h": loaded(head="h")}
    with_model = {(drafter, "small") for drafter in tune.WITH_DRAFT}
    assert tried(models) == FREE | with_model | {("translate", "other"), ("head", "h"), ("chained:suffix,head", "h")}


def test_named_drafters_get_the_drafts_that_they_can_use() -> None:
    models = {None: loaded(own_head="own"), "small": loaded(draft="model"), "h": loaded(head="h")}
    assert tried(models, "suffix", "chained:suffix,model") == {("suffix", None), ("chained:suffix,model", "small")}
    assert tried(models, "head") == {("head", None), ("head", "h")}


@pytest.mark.parametrize(("drafter", "kind"), [("model", "model"), ("chained:suffix,model", "model"), ("head", "head")])
def test_a_drafter_that_lacks_its_draft_is_refused(drafter: str, kind: str) -> None:
    with pytest.raises(UsageError, match=f"needs a draft {kind}: name one with --draft"):
        tried({None: loaded()}, drafter)
