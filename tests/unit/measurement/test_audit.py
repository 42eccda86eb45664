"""The audit finds a changed text, says where, and tells a tie from a bug."""

from __future__ import annotations

import pytest

import slipstream
from slipstream.core.protocols import ModelInfo
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.core.tree import ROOT
from slipstream.core.verify import Verdict, Verifier, verify_matching
from slipstream.measurement.audit import AuditQuestions, audit, logit_gap, tie_tolerance
from slipstream.measurement.engine_generator import EngineGenerator

LIMITS = Limits(40, ignore_eos=True)
SAMPLINGS = [Sampling(), Sampling(temperature=0.8, seed=1), Sampling(temperature=1.2, top_p=0.9, seed=2)]


def findings_of(tiny, prompts, others, tolerance=0.0):
    plain = EngineGenerator("none", lambda: slipstream.load(tiny, drafter="none"))
    gap_of = logit_gap(tiny.model, lambda prompt: tiny.tokenizer.prompt_ids(prompt.turns[0]))
    return list(audit(plain, others, AuditQuestions(prompts, SAMPLINGS, LIMITS), tolerance, gap_of))


def lossy() -> Verifier:
    """Takes the first drafted token unseen, now and then. Test-only."""

    def verify(tree, scores, choice):
        children = tree.children(ROOT)
        if children and choice.position % 7 == 3:
            return Verdict((children[0],), scores.argmax(children[0]))
        return verify_matching(tree, scores, choice)

    return Verifier("lossy", verify, couples=True)


@pytest.mark.parametrize("drafter", ["ngram", "suffix", "suffix(width=3)", "early-exit(layers=1)"])
def test_an_honest_drafter_is_identical_everywhere(tiny, prompts, drafter) -> None:
    other = EngineGenerator(drafter, lambda: slipstream.load(tiny, drafter=drafter, policy="fixed(4)"))
    findings = findings_of(tiny, prompts, [other])
    assert len(findings) == len(prompts) * len(SAMPLINGS)
    assert {f.outcome for f in findings} == {"identical"}


def test_a_lossy_verifier_is_caught_with_position_and_tokens(tiny, prompts) -> None:
    other = EngineGenerator("bad", lambda: slipstream.load(tiny, drafter="suffix", policy="fixed(4)"), lossy())
    bugs = [f for f in findings_of(tiny, prompts, [other]) if f.outcome == "BUG"]
    assert bugs
    for bug in bugs:
        assert bug.difference is not None
        assert bug.difference.plain_token != bug.difference.other_token
        assert bug.difference.gap is not None
        assert bug.difference.gap > 0  # plain decoding really preferred its own token


def test_a_gap_within_the_tolerance_is_a_tie(tiny, prompts) -> None:
    other = EngineGenerator("bad", lambda: slipstream.load(tiny, drafter="suffix", policy="fixed(4)"), lossy())
    outcomes = {f.outcome for f in findings_of(tiny, prompts, [other], tolerance=1e9)}
    assert "tie" in outcomes
    assert "BUG" not in outcomes


def test_batch_invariant_models_have_no_excuse() -> None:
    def info(dtype: str, invariant: bool) -> ModelInfo:
        return ModelInfo("m", "torch", "cpu", dtype, 10, 10, 10, invariant, 10)

    assert tie_tolerance(info("fp32", True)) == 0.0
    assert 0 < tie_tolerance(info("fp32", False)) < tie_tolerance(info("bf16", False))
