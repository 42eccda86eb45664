"""vLLM's methods: what is written for each.

RULES was read from vLLM 0.32.0 (`config/speculative.py`, `config/vllm.py`), and its own parser and
`create_engine_config` were run on every command line here.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
