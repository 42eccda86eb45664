"""vLLM's methods: what is written for each, and what the doctor says of them.

RULES was read from vLLM 0.32.0 (`config/speculative.py`, `config/vllm.py`). Comments with quotes are what its own
parser and `create_engine_config` said of such a command line, on a CPU and with made-up drafts; others are from source.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slipstream.diagnosis.configs import lint
from slipstream.engines.driver import find_method
from slipstream.engines.engine_types import EngineSettings
from slipstream.engines.vllm.driver import ENGINE
from slipstream.engines.vllm.methods import EXPORTED, METHODS
from slipstream.errors import UsageError

# By vLLM's name: is a model needed, is a number of tokens needed, does it run with async scheduling.
RULES = {
    "draft_model": ("required", "required", True),
    "ngram": ("unused", "required", False),
    "ngram_gpu": ("unused", "required", True),
    "suffix": ("unused", "optional", False),
    "eagle": ("required", "required", True),
    "eagle3": ("required", "required", True),
    "medusa": ("required", "required", False),
    "mlp_speculator": ("required", "optional", False),
    "mtp": ("optional", "required", True),
    "dflash": ("required", "required", True),
    "dspark": ("optional", "optional", True),
    "extract_hidden_states": ("unused", "required", True),
    "custom_class": ("required", "required", False),
}


def config(method: str, draft: str | None = None, length: int | None = None) -> dict:
    argv = ENGINE.plan(EngineSettings("org/model", method, draft, length), Path("unused")).argv
    return json.loads(argv[argv.index("--speculative-config") + 1])


def test_the_table_is_vllm_s():
    told = {way.name: (way.model, way.tokens, way.is_asynchronous) for way in METHODS if not way.variant_of}
    assert told == RULES
    for way in METHODS:
        if way.variant_of:
            model, tokens, is_asynchronous = RULES[way.variant_of]
            assert (way.model, way.tokens) == (model, tokens) and way.is_asynchronous == is_asynchronous


@pytest.mark.parametrize(
    ("method", "draft", "length", "written"),
    [
        ("dflash", "d", None, {"method": "dflash", "model": "d", "num_speculative_tokens": 8}),
        ("dspark", "d", None, {"method": "dspark", "model": "d"}),
        ("dspark", None, 5, {"method": "dspark", "num_speculative_tokens": 5}),
        (
            "draft_model_parallel", "d", 6,
            {"method": "draft_model", "parallel_drafting": True, "model": "d", "num_speculative_tokens": 6},
        ),
        (
            "eagle3_parallel", "d", None,
            {"method": "eagle3", "parallel_drafting": True, "model": "d", "num_speculative_tokens": 8},
        ),
        ("suffix", None, None, {"method": "suffix"}),
        ("mtp", None, None, {"method": "mtp", "num_speculative_tokens": 1}),
    ],
)  # fmt: skip
def test_what_is_written(method, draft, length, written):
    assert config(method, draft, length) == written


def test_a_method_in_capitals_is_written_too():
    assert config("NGRAM") == config("ngram")


@pytest.mark.parametrize(
    ("method", "draft", "says"),
    [
        ("dspark", None, "needs a draft or a draft length"),
        ("dflash", None, "needs a draft model"),
        ("mlp_speculator", "d", "has no code to run it"),
    ],
)
def test_what_vllm_would_refuse_is_not_written(method, draft, says):
    with pytest.raises(UsageError, match=says):
        config(method, draft)


def test_a_special_checkpoint_is_named():
    for name, kind in (("dflash", "DFlash head"), ("eagle3_parallel", "P-EAGLE"), ("draft_model_parallel", "PARD")):
        plan = ENGINE.plan(EngineSettings("org/model", name, "d"), Path("unused"))
        assert kind in " ".join(plan.notes)
    assert find_method(ENGINE, "mlp_speculator").missing and EXPORTED["mtp"].needs


# -- the doctor

NGRAM = {"method": "ngram", "num_speculative_tokens": 4}
DRAFT = {"method": "draft_model", "model": "d", "num_speculative_tokens": 4}
SCHEDULE = {"num_speculative_tokens_per_batch_size": [[1, 8, 4], [9, 64, 0]]}
HEAD = {"model": "org/EAGLE3-head", "num_speculative_tokens": 3}

# Settings, further flags, the findings, and a part of the first one.
REFUSED = [
    # "async scheduling is only supported with EAGLE/MTP/Draft Model/NGram GPU/DSpark/DFlash"
    (NGRAM, "--async-scheduling", ["config-conflict"], "ngram_gpu"),
    ({"method": "suffix"}, "--async-scheduling", ["config-conflict"], "Remove --async-scheduling"),
    (DRAFT | {"method": "medusa"}, "--async-scheduling", ["config-conflict"], "medusa"),
    (NGRAM | {"method": "ngram_gpu"}, "--async-scheduling", [], ""),
    (NGRAM | {"method": "ngram_gpu"}, "--async-scheduling --distributed-executor-backend ray", [], ""),
    (NGRAM, "--no-async-scheduling", [], ""),
    # "Async scheduling is not compatible with disable_padded_drafter_batch=True."
    (DRAFT | {"disable_padded_drafter_batch": True}, "--async-scheduling", ["config-conflict"], "Remove one"),
    # "Disabling num_speculative_tokens_per_batch_size and falling back to static num_speculative_tokens"
    (NGRAM | SCHEDULE, "-dp 2", ["config-no-effect"], "data parallelism"),
    (NGRAM | SCHEDULE, "", [], ""),
    # accepted, with the method eagle3
    (HEAD | {"method": "draft_model"}, "", ["config-no-effect"], '"method": "eagle3"'),
    (HEAD | {"method": "medusa"}, "", ["config-no-effect"], '"method": "eagle3"'),
    (HEAD | {"method": "eagle"}, "", [], ""),
    # the proposer asserts num_speculative_tokens == 1; the configuration is accepted
    (NGRAM | {"method": "extract_hidden_states"}, "", ["config-range"], "must be 1"),
    # the model runner raises: Unknown speculative decoding method: mlp_speculator
    ({"method": "mlp_speculator", "model": "d"}, "", ["config-method-cant-start"], "no code to run it"),
    # "num_speculative_tokens must be provided"
    ({"method": "dspark"}, "", ["config-missing"], '"model": "..."'),
    ({"method": "dspark", "model": "d"}, "", [], ""),
    ({"method": "dspark", "num_speculative_tokens": 5}, "", [], ""),
    # "dspark_draft_topk is only supported by DSpark"
    (DRAFT | {"dspark_draft_topk": 4}, "", ["config-conflict"], "dspark"),
    # "index_share_for_mtp_iteration is only supported with method='mtp'"
    (NGRAM | {"index_share_for_mtp_iteration": True}, "", ["config-conflict"], "mtp"),
    # "use_heterogeneous_vocab only works with method='draft_model'"
    (HEAD | {"method": "eagle3", "use_heterogeneous_vocab": True}, "", ["config-conflict"], "draft_model"),
    (HEAD | {"method": "eagle3", "use_heterogeneous_vocab": False}, "", [], ""),
    # accepted and ignored
    (NGRAM | {"parallel_drafting": True}, "", ["config-no-effect"], "draft_model"),
    # "are only valid with rejection_sample_method='synthetic'"
    (NGRAM | {"synthetic_acceptance_length": 2}, "", ["config-conflict"], "synthetic_acceptance_length"),
    # "requires exactly one of synthetic_acceptance_rates or synthetic_acceptance_length"
    (NGRAM | {"rejection_sample_method": "synthetic"}, "", ["config-conflict"], "needs one of"),
    (NGRAM | {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2}, "", [], ""),
]


@pytest.mark.parametrize(("settings", "flags", "ids", "told"), REFUSED)
def test_the_doctor_says_what_vllm_does(settings, flags, ids, told):
    findings = lint("vllm", f"vllm serve m --speculative-config '{json.dumps(settings)}' {flags}")
    assert [finding.id for finding in findings] == ids
    assert not findings or told in findings[0].cause + findings[0].fix


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve m --spec-method ngramm --spec-tokens 3",
        "vllm serve m --spec-method ngram --spec-tokens 0",
        "vllm serve m --spec-method extract_hidden_states --spec-tokens 0",
        "vllm serve m --speculative-config.method ngramm --speculative-config.num_speculative_tokens 4",
        "vllm serve m --spec-tokens",
        "vllm serve m --max-num-seq 8 --max-num-seq 8",
        '{"method": "mlp_speculator", "prompt_lookup_max": 4, "model": "eagle3-x", "num_speculative_tokens": "x"}',
    ],
)
def test_one_finding_once(text):
    findings = lint("vllm", text)
    assert findings
    assert len({(finding.id, finding.cause) for finding in findings}) == len(findings)
    assert len(findings) == len({finding.evidence for finding in findings}), findings
