"""Specs: every drafter by name, and errors that list what is valid."""

from __future__ import annotations

import pytest

from fakes import FakeModel, FakeTokenizer, letters
from slipstream.core.team import DrafterTeam
from slipstream.drafters import DRAFTERS, DraftSources, make_drafter
from slipstream.drafters.model import DraftModelDrafter
from slipstream.drafters.ngram import NgramDrafter
from slipstream.drafters.retokenise import RetokenisingDrafter
from slipstream.drafters.suffix import SuffixDrafter
from slipstream.errors import UsageError


class CuttableFake(FakeModel):
    num_layers = 12
    cut_at: int | None = None

    def first_layers(self, count: int) -> FakeModel:
        self.cut_at = count
        return FakeModel(self.logits)

    def first_tokens(self, count: int) -> FakeModel:
        self.cut_at = count
        return FakeModel(self.logits)


def sources(**changes) -> DraftSources:
    settings = {"target": CuttableFake(), "target_texts": letters(), "draft": FakeModel(), "draft_texts": letters()}
    return DraftSources(**settings | changes)


@pytest.mark.parametrize(
    ("spec", "kind", "name"),
    [
        ("ngram", NgramDrafter, "ngram"),
        ("ngram(min_n=2,max_n=3)", NgramDrafter, "ngram"),
        (" ngram( min_n = 2 ) ", NgramDrafter, "ngram"),
        ("suffix", SuffixDrafter, "suffix"),
        ("suffix(depth=8, width=2)", SuffixDrafter, "suffix"),
        ("model", DraftModelDrafter, "model"),
        ("model(p_min=0.3,n_parallel=3)", DraftModelDrafter, "model"),
        ("early-exit", DraftModelDrafter, "early-exit"),
        ("translate", DraftModelDrafter, "translate"),
        ("chained:suffix,model", DrafterTeam, "chained:suffix,model"),
        ("chained:ngram(min_n=2,max_n=3), model(p_min=0.5)", DrafterTeam, "chained:ngram,model"),
        ("chained:suffix,none", DrafterTeam, "chained:suffix"),
        ("chained:suffix+model(p_min=0.5)", DrafterTeam, "chained:suffix,model"),
        ("own", SuffixDrafter, "suffix"),
    ],
)
def test_a_spec_makes_its_drafter(spec, kind, name):
    drafter = make_drafter(spec, sources())
    assert type(drafter) is kind
    assert drafter.name == name


def test_none_is_no_drafter():
    assert make_drafter("none", sources()) is None


def test_options_arrive_with_their_types():
    options = make_drafter("model(p_min=0.3,n_parallel=3,p_split=0.2)", sources())._options
    assert (options.p_min, options.n_parallel, options.p_split) == (0.3, 3, 0.2)
    assert type(options.n_parallel) is int


@pytest.mark.parametrize("spec", ["", "nope", "ngram(", "ngram)", "model p_min=1", "chained:suffix,nope"])
def test_an_unknown_name_lists_the_known_ones(spec):
    with pytest.raises(UsageError, match=f"expected none, {', '.join(DRAFTERS)}"):
        make_drafter(spec, sources())


@pytest.mark.parametrize(
    ("spec", "valid"),
    [
        ("ngram(n=3)", "min_n, max_n"),
        ("suffix(p_min=0.1)", "depth, width, max_tokens"),
        ("model(depth=4)", "p_min, n_parallel, p_split"),
        ("early-exit(n=4)", "layers, p_min"),
        ("translate(n=4)", "p_min, min_overlap"),
    ],
)
def test_an_unknown_option_lists_the_valid_ones(spec, valid):
    with pytest.raises(UsageError, match=f"it has {valid}"):
        make_drafter(spec, sources())


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("ngram(min_n=two)", "min_n='two' is not of type int"),
        ("model(n_parallel=2.5)", "n_parallel='2.5' is not of type int"),
        ("model(p_min=high)", "p_min='high' is not of type float"),
        ("ngram(2)", "'2' is no option; expected name=value"),
        ("ngram(min_n=5,max_n=2)", "expected 1 <= min_n <= max_n"),
        ("model(p_min=nan)", "expected p_min"),
        ("chained", "after a colon"),
        ("chained:", "after a colon|at least one drafter"),
        ("chained:none", "at least one drafter"),
    ],
)
def test_a_bad_value_says_what_was_expected(spec, message):
    with pytest.raises(UsageError, match=message):
        make_drafter(spec, sources())


@pytest.mark.parametrize("spec", ["model", "translate", "chained:suffix,model"])
def test_a_draft_model_is_asked_for_where_none_was_named(spec):
    with pytest.raises(UsageError, match="needs a draft model"):
        make_drafter(spec, sources(draft=None, draft_texts=None))


def test_model_refuses_another_vocabulary_and_names_the_way_out():
    with pytest.raises(UsageError, match="use the drafter translate"):
        make_drafter("model", sources(same_vocabulary=False))


def test_translate_retokenises_where_vocabularies_share_little():
    far = FakeTokenizer(["<eos>", *(a + b for a in "abcde" for b in "abcde"), *"abcde"], eos=0)
    assert type(make_drafter("translate", sources(draft=FakeModel(vocab=31), draft_texts=far))) is RetokenisingDrafter
    kept = make_drafter("translate(min_overlap=0.1)", sources(draft=FakeModel(vocab=31), draft_texts=far))
    assert type(kept) is DraftModelDrafter


def test_early_exit_takes_a_quarter_of_the_layers_unless_told():
    target = CuttableFake()
    make_drafter("early-exit", sources(target=target))
    assert target.cut_at == 3
    make_drafter("early-exit(layers=5)", sources(target=target))
    assert target.cut_at == 5


def test_early_exit_needs_a_backend_that_can_stop_early():
    with pytest.raises(UsageError, match="fake cannot"):
        make_drafter("early-exit", sources(target=FakeModel()))
