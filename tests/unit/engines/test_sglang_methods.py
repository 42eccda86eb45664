"""SGLang's methods: what is written for each.

SGLang 0.5.23's own `ServerArgs` parser and `handle_speculative_decoding` (`srt/arg_groups/speculative_hook.py`) were
run on these command lines.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.engines import find_engine
from slipstream.engines.engine_types import EngineSettings
from slipstream.engines.sglang.flags import ALGORITHMS
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
