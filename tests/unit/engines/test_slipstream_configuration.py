"""Slipstream's own server as an engine: its command lines are checked, and its options are those of `serve`."""

from __future__ import annotations

import pytest

from commands import run_here
from slipstream.diagnosis.configs import guess_engine, lint
from slipstream.engines.slipstream.flags import FLAGS
from slipstream.parsing.manifests import as_shell


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("slipstream serve --model big.gguf --draft small.gguf --drafter own", set()),
        ("exec slipstream serve -m big.gguf --drafter 'chained:suffix+head' --port 9000", set()),
        ("python -m slipstream serve --drafter 'suffix(width=3)' --exact", set()),
        ("slipstream serve --drafter model", {"config-missing"}),
        ("slipstream serve --drafter telepathy", {"config-choice"}),
        ("slipstream serve --prot 80 --context many", {"config-unknown-key", "config-type"}),
    ],
)
def test_a_command_of_slipstream_is_checked_as_its_own(command: str, expected: set[str]) -> None:
    assert guess_engine(command) == "slipstream"
    assert {finding.id for finding in lint("slipstream", command)} == expected


def test_the_table_of_options_is_that_of_serve() -> None:
    lines = [line.strip("\u2502 *") for line in run_here("serve", "--help").stdout.splitlines()]
    options = {line.split()[0] for line in lines if line.startswith("--")}
    assert options == {flag.name for flag in FLAGS.flags}


COMPOSE = """\
services:
  one:
    image: ghcr.io/ggml-org/llama.cpp:server-cuda
    command: ["-m", "/models/big.gguf", "--draft-max", "8"]
  two:
    image: vllm/vllm-openai:v0.32.0
    command: --model org/name --speculative-model x
"""
KUBERNETES = """\
kind: Service
---
kind: Deployment
spec:
  template:
    spec:
      containers:
      - name: a
        image: any/image
        command: [sh, -e, -c]
        args:
        - |
          exec vllm serve org/name --speculativ-config '{}'
"""


def test_containers_are_checked_by_what_they_start() -> None:
    lines = as_shell(COMPOSE).splitlines()
    assert lines[2] == "docker run ghcr.io/ggml-org/llama.cpp:server-cuda -m /models/big.gguf --draft-max 8"
    assert lines[5] == "docker run vllm/vllm-openai:v0.32.0 --model org/name --speculative-model x"
    assert [(f.id, f.evidence) for f in lint("llama-server", as_shell(COMPOSE))] == [
        ("config-removed", "line 3: --draft-max 8")
    ]
    assert guess_engine(as_shell(KUBERNETES)) == "vllm"
    assert {finding.id for finding in lint("vllm", as_shell(KUBERNETES))} >= {"config-unknown-key"}


@pytest.mark.parametrize("text", ["vllm serve org/name", "a: [1", "model:\n  draft: x\n", "", "- image: 3\n"])
def test_other_texts_are_left_as_they_are(text: str) -> None:
    assert as_shell(text) == text
