"""Memory plans over several machines: layers over machines, a share of each over the GPUs of one."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from slipstream.engines import find_folder
from slipstream.errors import UsageError
from slipstream.predict.memory import GIB, MemoryRoom, Need
from slipstream.predict.placement import plan
from slipstream.predict.sizes import Sizes

BIG = Sizes("405B", 812_000_000_000, 406_000_000_000, 126, 8, 128, 131072, 128256, 16384)
SMALL = Sizes("1B", 2_500_000_000, 1_240_000_000, 16, 8, 64, 131072, 128256, 2048)
VLLM = find_folder("vllm").facts
EIGHT = MemoryRoom((80 * GIB,) * 8)
NEED = Need(8192)


def test_one_machine_is_too_small_and_two_are_not():
    assert not plan(BIG, None, NEED, EIGHT, VLLM).fits
    assert plan(BIG, None, NEED, EIGHT, VLLM, nodes=2).fits


def test_layers_are_split_over_machines_and_shared_within():
    made = plan(BIG, SMALL, NEED, EIGHT, VLLM, nodes=3)
    assert (len(made.gpus), made.gpus_each, made.nodes) == (24, 8, 3)
    assert [made.gpus[i * 8].num_layers for i in range(3)] == [42, 42, 42]
    weights = sum(gpu.target_bytes for gpu in made.gpus)
    assert weights == pytest.approx(BIG.weight_bytes, rel=0.02)


def test_the_last_machine_drafts():
    made = plan(BIG, SMALL, NEED, EIGHT, VLLM, nodes=2)
    assert [gpu.draft_bytes > 0 for gpu in made.gpus] == [False] * 8 + [True] * 8
    assert sum(gpu.draft_bytes for gpu in made.gpus) >= SMALL.weight_bytes * 0.99


def test_uneven_layers_still_add_up():
    made = plan(BIG, None, NEED, EIGHT, VLLM, nodes=4)
    assert sum(made.gpus[i * 8].num_layers for i in range(4)) == 126


def test_the_plan_names_the_command_that_follows():
    made = plan(BIG, None, NEED, EIGHT, VLLM, nodes=2)
    assert any("--tensor-parallel 8 --pipeline-parallel 2 --nodes 2" in note for note in made.notes)


def test_one_machine_plans_as_before():
    assert plan(BIG, SMALL, NEED, EIGHT, VLLM) == plan(BIG, SMALL, NEED, EIGHT, VLLM, nodes=1)


def test_an_engine_of_one_machine_says_so():
    with pytest.raises(UsageError, match=r"llama\.cpp runs on one machine only: remove --nodes"):
        plan(BIG, None, NEED, EIGHT, find_folder("llama.cpp").facts, nodes=2)


def test_the_command_tells_machines_apart():
    arguments = [
        "plan",
        "--weights-gb",
        "812",
        "--like",
        "Llama-3.1-405B-Instruct",
        "--gpus",
        "80,80,80,80,80,80,80,80",
    ]
    command = [sys.executable, "-m", "slipstream", *arguments, "--engine", "vllm", "--nodes", "2"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ)
    assert shown.returncode == 0 and "machine 1" in shown.stdout and "machine 2" in shown.stdout
    told = json.loads(subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=60).stdout)
    assert told["nodes"] == 2 and len(told["gpus"]) == 16
