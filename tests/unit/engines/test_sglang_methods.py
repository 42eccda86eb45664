"""SGLang's methods: what is written for each, and what the doctor says of them.

Comments are what SGLang 0.5.23's own `ServerArgs` parser and `handle_speculative_decoding` said of such a command line,
with the device taken for CUDA and the models' configs made up. Its server was not run.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.diagnosis.configs import lint
from slipstream.engines import find_engine
from slipstream.engines.engine_types import EngineSettings
from slipstream.engines.sglang.flags import ALGORITHMS, FLAGS
from slipstream.engines.sglang.methods import METHODS
from slipstream.errors import UsageError
from slipstream.tasks.tune_engine import candidates_of

ENGINE = find_engine("sglang")
ADAPTER = ("--uno-lora-path", "/adapter")


def speculative(method: str, draft: str | None = None, length: int | None = None, extra=()) -> str:
    """What is written of the speculation."""
    argv = ENGINE.plan(EngineSettings("m", method, draft, length, extra=extra), Path("unused")).argv
    return " ".join(argv[argv.index("--speculative-algorithm") :]).replace("--speculative-", "")


@pytest.mark.parametrize("way", [way for way in METHODS if not way.needs_length], ids=lambda way: way.name)
def test_without_a_length_sglang_chooses_it(way):
    draft = "d" if way.draft == "required" else None
    written = speculative(way.name, draft)
    own = {"EAGLE_ADAPTIVE": " adaptive", "EAGLE3_ADAPTIVE": " adaptive", "NEXTN_ADAPTIVE": " adaptive"}
    own["NGRAM_CHAIN"] = " ngram-max-bfs-breadth 1"
    assert written == f"algorithm {way.algorithm}{' draft-model-path d' if draft else ''}{own.get(way.name, '')}"
    assert way.algorithm in ALGORITHMS


@pytest.mark.parametrize(
    ("method", "draft", "length", "written"),
    [
        ("STANDALONE", "d", 4, "draft-model-path d num-steps 4 eagle-topk 1 num-draft-tokens 5"),
        ("nextn", None, 2, "num-steps 2 eagle-topk 1 num-draft-tokens 3"),
        ("DFLASH", "d", 15, "draft-model-path d dflash-block-size 16"),
        ("DSPARK", None, 7, "dspark-block-size 7"),
        ("NGRAM", None, 8, "num-draft-tokens 9"),
        ("NGRAM_CHAIN", None, 8, "ngram-max-bfs-breadth 1 num-draft-tokens 9"),
    ],
)
def test_with_a_length(method, draft, length, written):
    assert speculative(method, draft, length).partition(" ")[2].partition(" ")[2] == written


def test_uno_has_an_adapter_and_a_length_and_no_draft():
    assert speculative("UNO", length=4, extra=ADAPTER) == "algorithm UNO num-draft-tokens 5 --uno-lora-path /adapter"
    assert "num-draft-tokens 5" in speculative("uno", length=4, extra=("--uno-lora-path=/adapter",))
    with pytest.raises(UsageError, match="UNO needs --uno-lora-path: add it with --engine-args"):
        speculative("UNO", length=4)
    with pytest.raises(UsageError, match="UNO has no default draft length"):
        speculative("UNO", extra=ADAPTER)
    with pytest.raises(UsageError, match="remove --draft"):
        speculative("UNO", "d", 4, extra=ADAPTER)


def test_tune_tries_no_method_that_needs_more_arguments():
    assert {candidate.drafter for candidate in candidates_of(ENGINE, [], [])} == {"NGRAM", "NGRAM_CHAIN"}


def test_a_length_of_its_own_is_not_taken_with_adaptive_ones():
    with pytest.raises(UsageError, match="EAGLE3_ADAPTIVE has no draft length"):
        speculative("EAGLE3_ADAPTIVE", "d", 4)


# -- the doctor

TREE = "EAGLE --speculative-draft-model-path d"
UNO = "UNO --uno-lora-path a --speculative-num-draft-tokens 4"
DSPARK = "DSPARK --speculative-dspark-block-size 4 --speculative-num-draft-tokens"
DFLASH = "DFLASH --speculative-draft-model-path d --speculative-dflash-block-size 4 --speculative-num-draft-tokens"
CHAIN_FLAG = "--speculative-ngram-max-bfs-breadth 1"

# After --speculative-algorithm; the findings; a part of the first.
REFUSED = [
    # TypeError: '>' not supported between instances of 'NoneType' and 'int'
    (f"{TREE} --speculative-num-steps 3", ["config-missing"], "--speculative-eagle-topk is missing"),
    # AssertionError
    (f"{TREE} --speculative-eagle-topk 1", ["config-missing"], "--speculative-num-steps is missing"),
    (f"{TREE} --speculative-num-draft-tokens 4", ["config-missing"], "--speculative-num-steps is missing"),
    (f"{TREE} --speculative-num-steps 3 --speculative-eagle-topk 1", [], ""),
    (f"{TREE} --speculative-num-steps 3 --speculative-adaptive", [], ""),
    (f"{TREE} --speculative-adaptive", [], ""),
    # "--speculative-num-steps=4 is not in the adaptive config candidate_steps"
    (f"{TREE} --speculative-num-steps 4 --speculative-adaptive", ["config-conflict"], "0, 1, 3, 5, 7"),
    (f"{TREE} --speculative-num-steps 4 --speculative-adaptive --speculative-adaptive-config f.json", [], ""),
    # "speculative_adaptive disabled: speculative_eagle_topk=4", then an AssertionError
    (f"{TREE} --speculative-eagle-topk 4 --speculative-adaptive", ["config-missing", "config-no-effect"], "num-steps"),
    # "speculative_adaptive disabled: speculative_algorithm=NGRAM"
    ("NGRAM --speculative-adaptive", ["config-no-effect"], "not with NGRAM"),
    ("STANDALONE --speculative-draft-model-path d --speculative-adaptive", ["config-no-effect"], "STANDALONE"),
    # "UNO requires --uno-lora-path.", "UNO requires --speculative-num-draft-tokens"
    ("UNO --speculative-num-draft-tokens 4", ["config-missing"], "--uno-lora-path PATH"),
    ("UNO --uno-lora-path a", ["config-missing"], "--speculative-num-draft-tokens 4"),
    (UNO, [], ""),
    # "UNO reuses the target model and does not accept --speculative-draft-model-path."
    (f"{UNO} --speculative-draft-model-path d", ["config-conflict"], "refuses a draft model"),
    # "UNO requires TP=PP=1."
    (f"{UNO} --tp 2 --pp-size 2", ["config-conflict"], "one GPU"),
    (f"{UNO} --unknown 1 --unknown 1", ["config-unknown-key"], "--unknown"),
    # "UNO tree mode requires --speculative-num-steps", "UNO tree mode requires Q >= F; got Q=4, F=5."
    (f"{UNO} --speculative-eagle-topk 2", ["config-missing"], "--speculative-num-steps 3"),
    (f"{UNO} --speculative-eagle-topk 2 --speculative-num-steps 4", ["config-conflict"], "5 to 128"),
    # "DSpark speculative_num_draft_tokens must equal gamma + 1"
    (f"{DSPARK} 4", ["config-conflict"], "set it to 5"),
    (f"{DSPARK} 5", [], ""),
    # "For DFLASH they must match."
    (f"{DFLASH} 5", ["config-conflict"], "set it to 4"),
    (f"{DFLASH} 4", [], ""),
    # "speculative_eagle_topk(10) > 1 with page_size(64) > 1 is unstable"
    ("NGRAM --page-size 64", ["config-conflict"], "--speculative-ngram-max-bfs-breadth 1"),
    ("NGRAM --page-size 64 --attention-backend flashinfer", [], ""),
    (f"NGRAM --page-size 64 {CHAIN_FLAG}", [], ""),
    ("NGRAM --page-size 1", [], ""),
]


@pytest.mark.parametrize(("text", "ids", "told"), REFUSED)
def test_the_doctor_says_what_sglang_does(text, ids, told):
    findings = lint("sglang", f"sglang serve --model m --speculative-algorithm {text}")
    assert [finding.id for finding in findings] == ids
    assert not findings or told in findings[0].cause + findings[0].fix
    assert len({(finding.id, finding.cause) for finding in findings}) == len(findings)


def test_the_table_has_the_flags_of_the_wheel():
    assert lint("sglang", "sglang serve --model m --bf16-gemm-backend torch") == []
    assert FLAGS.knows("--pp-size") and FLAGS.knows("--speculative-adaptive-config")
    assert not FLAGS.knows("--stat-loggers")  # fields of ServerArgs that are no flags
    assert not FLAGS.knows("--custom-sigquit-handler")
