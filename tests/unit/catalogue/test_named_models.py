"""Models by their names: those of the stories that this project began with."""

from __future__ import annotations

import pytest

from slipstream.catalogue.named_models import check_names, family_by_name

MIQU = "Midnight-Miqu-70B-v1.5-exl2-2.5bpw"


def test_every_family_of_the_table_exists():
    from slipstream.catalogue.named_models import _PARTS, FAMILIES

    assert {family for _, family in _PARTS} <= {family.name for family in FAMILIES}


@pytest.mark.parametrize(
    ("target", "draft", "same"),
    [
        ("Meta-Llama-3.1-8B-Instruct-Q5_K_M.gguf", "Llama-3.2-1B-Instruct.Q4_K_M.gguf", True),
        ("llama3.2:3b", "llama3.2:1b", True),
        (MIQU, "TinyLlama-1.1B-Chat-v1.0-exl2-4.0bpw", True),
        (MIQU, "bartowski/Llama-3.2-1B-Instruct-exl2", False),
        (MIQU, "Qwen2.5-0.5B", False),
        ("TheBloke/Llama-2-7B-AWQ", "JackFram/llama-160m", True),
        ("codellama/CodeLlama-34b-hf", "codellama/CodeLlama-7b-hf", False),  # 32,000 and 32,016
        ("codellama/CodeLlama-13b-hf", "codellama/CodeLlama-7b-hf", True),
    ],
)
def test_the_pairs_of_the_stories(target, draft, same):
    [finding] = check_names(target, draft)
    assert finding.id == ("vocabulary-by-name" if same else "vocabulary-by-name-differs")
    assert target in finding.evidence and finding.cause.startswith("By the" if same else "By its name")


def test_drafts_with_the_targets_vocabulary_are_named():
    [finding] = check_names(MIQU, "Qwen2.5-0.5B")
    assert "Models with the target's vocabulary:" in finding.fix and "Qwen" not in finding.fix
    assert "TinyLlama" in finding.fix and "llama-68m" not in finding.fix


@pytest.mark.parametrize("name", ["my-model", "Llama-4-Scout", "Qwen3.5-4B", "gemma-3n-x", "llama-3000"])
def test_an_unknown_name_says_nothing(name):
    assert family_by_name(name) is None
    assert check_names(name, "my-other-model") == []
