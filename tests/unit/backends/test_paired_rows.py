"""Products of rows in pairs, for ARM processors that multiply matrices (i8mm): the bits are those of rows one by one.

Runs in an emulator (`make emulator` installs it and a compiler), so that it needs no such processor.
"""

from __future__ import annotations

import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from slipstream.backends.torch.cpu import library

COMPILER, EMULATOR = shutil.which("aarch64-linux-gnu-gcc"), shutil.which("qemu-aarch64")
FLAGS = ["-O3", "-ffp-contract=fast", "-march=armv8.2-a+fp16+dotprod+i8mm", "-std=gnu11", "-static", "-w"]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The program with pairs, and without them."""
    if not COMPILER or not EMULATOR:
        pytest.skip("needs a compiler for aarch64 and qemu-aarch64: make emulator")
    folder = tmp_path_factory.mktemp("aarch64")
    source = folder / "all.c"
    source.write_bytes(library.kernel_source() + Path(__file__).with_name("paired_rows.c").read_bytes())
    built = {"pairs": folder / "pairs", "apart": folder / "apart"}
    for name, path in built.items():
        defined = [] if name == "pairs" else ["-DSLIP_NO_PAIRS"]
        subprocess.run([COMPILER, *FLAGS, *defined, str(source), "-o", str(path), "-lm"], check=True)
    return built


def hashes(program: Path) -> dict[tuple[str, str], list[str]]:
    """By layout and row: the hash of its outputs with each number of rows."""
    said = subprocess.run([str(EMULATOR), "-cpu", "max", str(program)], check=True, capture_output=True, text=True)
    found = defaultdict(list)
    for line in said.stdout.splitlines():
        layout, _, row, bits = line.split()
        found[layout, row].append(bits)
    return found


def test_pairs_are_used(build: dict[str, Path]) -> None:
    disassembled = {
        name: subprocess.run(["aarch64-linux-gnu-objdump", "-d", path], check=True, capture_output=True).stdout
        for name, path in build.items()
    }
    assert b"smmla" in disassembled["pairs"]
    assert b"smmla" not in disassembled["apart"]


def test_a_row_has_the_same_bits_in_a_pair_and_alone_in_any_company(build: dict[str, Path]) -> None:
    pairs, apart = hashes(build["pairs"]), hashes(build["apart"])
    assert len(pairs) == 10 * 27
    assert pairs == apart
    assert all(len(set(bits)) == 1 for bits in pairs.values())
    assert len({bits[0] for bits in pairs.values()}) == 10 * 27  # hashes tell rows and layouts apart
