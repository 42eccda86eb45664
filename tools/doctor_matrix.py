"""Ten machines x twelve pairs: do `doctor`, `pairs`, `plan` and loading say the same?

    python tools/doctor_matrix.py [--run TARGET DRAFT] [--context N]

The machines are simulated, and the models are headers without weights (tools/fake_models.py). For each cell the four
are compared: does it fit in memory, can the engine use the two vocabularies, can the files be used, and which speed-up
is predicted. Exit code 1 on any contradiction. `--run` adds a pair of real models, which is really loaded.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import fake_models
from fake_models import FakeShape
from slipstream.catalogue.pairs import Ranked
from slipstream.core.stream import Limits
from slipstream.diagnosis.examine import Case, Diagnosis, examine
from slipstream.errors import CapacityError, SlipstreamError
from slipstream.load_checks import ModelToLoad, refuse_too_large
from slipstream.loading import load
from slipstream.predict.gpus import Gpu, nominal_bandwidth, parse_nvidia_smi
from slipstream.predict.machine import Machine
from slipstream.predict.packages import InstalledPackage
from slipstream.tasks.options import PairsOptions, PlanOptions
from slipstream.tasks.pairs import RankedDrafts, pairs
from slipstream.tasks.plan import PlanResult, plan

GIB = 1 << 30
MEMORY_RULES = ("fit-memory", "fit-needs-gpu")
RUN_TOKENS = 4


# -- machines ---------------------------------------------------------------------------------------------------------


def machine(name: str, cores: int, memory_gib: int, bandwidth_gb: float, smi: str = "") -> Machine:
    """With 85 % of the memory free, and packages that see the GPU."""
    gpus = parse_nvidia_smi(smi)
    torch = InstalledPackage("2.9.0", "CUDA 12.8" if gpus else None, bool(gpus))
    llama_cpp = InstalledPackage("0.3.36", "GPU offload" if gpus else None, bool(gpus))
    free = int(memory_gib * GIB * 0.85)
    return Machine(name, cores, memory_gib * GIB, free, bandwidth_gb * 1e9, gpus, torch, llama_cpp)


def apple(memory_gib: int) -> Machine:
    usable = int(memory_gib * GIB * 0.75)
    gpu = Gpu("Apple M2 Max", "apple", usable, usable, None, nominal_bandwidth("Apple M2 Max"), None)
    torch, llama_cpp = InstalledPackage("2.9.0", "Metal", True), InstalledPackage("0.3.36", "GPU offload", True)
    return Machine("Apple M2 Max", 12, memory_gib * GIB, int(memory_gib * GIB * 0.85), 200e9, (gpu,), torch, llama_cpp)


MACHINES = {
    "laptop 8 GB": machine("a laptop", 4, 8, 40),
    "laptop 16 GB": machine("a laptop", 8, 16, 60),
    "workstation 64 GB": machine("a workstation", 16, 64, 90),
    "T4": machine("a server", 8, 32, 60, "Tesla T4, 15360, 14921, 7.5, 570.86.10\n"),
    "RTX 3060": machine("a PC", 8, 32, 60, "NVIDIA GeForce RTX 3060, 12288, 11800, 8.6, 570.86.10\n"),
    "RTX 4090": machine("a PC", 16, 64, 80, "NVIDIA GeForce RTX 4090, 24564, 24080, 8.9, 570.86.10\n"),
    "4090 + 5090": machine(
        "a PC", 16, 64, 80,
        "NVIDIA GeForce RTX 4090, 24564, 24080, 8.9, 570.86.10\n"
        "NVIDIA GeForce RTX 5090, 32607, 32109, 12.0, 570.86.10\n",
    ),
    "2 x 3090": machine(
        "a PC", 16, 128, 80, "NVIDIA GeForce RTX 3090, 24576, 24100, 8.6, 570.86.10\n" * 2
    ),
    "H200": machine("a server", 32, 512, 200, "NVIDIA H200, 143771, 143000, 9.0, 570.86.10\n"),
    "Apple 32 GB": apple(32),
}  # fmt: skip


@contextmanager
def simulated(here: Machine) -> Iterator[None]:
    """This machine, for all that asks."""
    with ExitStack() as patches:
        for place in ("diagnosis.examine", "tasks.pairs", "tasks.plan"):
            patches.enter_context(patch(f"slipstream.{place}.inspect", lambda: here))
        for place in ("backends", "backends.torch.memory"):
            patches.enter_context(patch(f"slipstream.{place}.free_memory", lambda: here.memory_free))
        yield


# -- pairs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PairToTry:
    name: str
    target: Path
    draft: Path
    engine: str
    runs: bool = False  # small enough to be loaded and run


LLAMA_1B = FakeShape(16, 2048, 32, 8, 8192)
LLAMA_8B = FakeShape(32, 4096, 32, 8, 14336)
LLAMA_70B = FakeShape(80, 8192, 64, 8, 28672)
LLAMA_405B = FakeShape(126, 16384, 128, 8, 53248)
OTHER_05B = FakeShape(24, 1024, 16, 2, 4864, prefix="other")
MLA = {
    "attention.kv_lora_rank": 512, "attention.key_length": 576, "attention.value_length": 512,
    "attention.key_length_mla": 192, "attention.value_length_mla": 128,
}  # fmt: skip
DEEPSEEK = FakeShape(27, 4096, 16, 1, 24576, 163840, "deepseek2", extra=MLA)
WINDOW = {"attention.sliding_window": 1024, "attention.key_length": 128, "attention.value_length": 128}
GEMMA_27B = FakeShape(62, 5376, 32, 16, 21504, architecture="gemma3", extra=WINDOW)
GEMMA_1B = FakeShape(26, 1280, 4, 1, 6912, 32768, "gemma3", extra=WINDOW)
SMALL = FakeShape(4, 512, 8, 4, 1024, 4096)
SMALLER = FakeShape(2, 256, 4, 4, 512, 4096)


def make_pairs(folder: Path) -> list[PairToTry]:
    def file(name: str, shape: FakeShape, num_parts: int = 1, missing: int = 0) -> Path:
        return fake_models.write_gguf(folder / name / f"{name}.gguf", shape, num_parts, missing)

    llama_1b, llama_8b, other = file("llama-1b", LLAMA_1B), file("llama-8b", LLAMA_8B), file("other-05b", OTHER_05B)
    exl2, awq = {"quant_method": "exl2", "bits": 2.5}, {"quant_method": "awq", "bits": 4}
    return [
        PairToTry("same family", llama_8b, llama_1b, "slipstream"),
        PairToTry("different vocabulary", llama_8b, other, "llama-server"),
        PairToTry("draft larger than target", llama_1b, llama_8b, "llama-server"),
        PairToTry("too large", file("llama-405b", LLAMA_405B), llama_1b, "slipstream"),
        PairToTry(
            "EXL2",
            fake_models.write_folder(folder / "miqu-70b-exl2", LLAMA_70B, 22, exl2),
            fake_models.write_folder(folder / "tiny-1b-exl2", LLAMA_1B, 0.62, exl2),
            "tabbyapi",
        ),
        PairToTry(
            "AWQ",
            fake_models.write_folder(folder / "llama-8b-awq", LLAMA_8B, 5.7, awq),
            fake_models.write_folder(folder / "llama-1b-awq", LLAMA_1B, 1.0, awq),
            "vllm",
        ),
        PairToTry("MLA", file("deepseek-16b", DEEPSEEK), llama_1b, "llama-server"),
        PairToTry("sliding window", file("gemma-27b", GEMMA_27B), file("gemma-1b", GEMMA_1B), "llama-server"),
        PairToTry("translated vocabulary", llama_8b, other, "slipstream"),
        PairToTry("split GGUF", file("llama-70b", LLAMA_70B, 3), llama_1b, "llama-server"),
        PairToTry("missing shard", file("llama-70b-part", LLAMA_70B, 3, missing=1), llama_1b, "llama-server"),
        PairToTry("small, runs", file("small", SMALL), file("smaller", SMALLER), "slipstream", runs=True),
    ]


# -- what the four say ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Said:
    """None: this command does not get that far."""

    usable: bool
    fits: bool | None = None
    vocabulary: bool | None = None
    files: bool | None = None
    speedup: float | None = None


def of_findings(is_usable: bool, result: Diagnosis | PlanResult) -> Said:
    """Of the doctor and `plan`, whose findings have the same rules."""
    ids = [finding.id for finding in result.findings if finding.severity == "blocks"]
    broken = any(rule.startswith("weights-") for rule in ids)
    return Said(
        is_usable,
        None if broken else not any(rule in MEMORY_RULES for rule in ids),
        None if broken else not any(rule.startswith("vocabulary-") for rule in ids),
        not broken,
        result.prediction.speedup if result.prediction else None,
    )


def of_pairs(entry: Ranked) -> Said:
    reason = entry.rejection or ""
    if reason.startswith(("can't be read", "weights-")):
        return Said(False, files=False)
    if reason.startswith(("another vocabulary", "vocabulary-")):
        return Said(False, vocabulary=False)
    if reason.startswith("does not fit"):
        return Said(False, fits=False, vocabulary=True, files=True)
    if reason:  # too large, or a context that is too short: nothing is said of the rest
        return Said(False)
    return Said(True, True, True, True, entry.prediction.speedup if entry.prediction else None)


def of_loading(pair: PairToTry, here: Machine) -> Said | None:
    """Only Slipstream loads models, and only main memory can be simulated."""
    if pair.engine != "slipstream" or here.gpus:
        return None
    try:
        refuse_too_large(ModelToLoad(pair.target), ModelToLoad(pair.draft))
    except CapacityError:
        return Said(False, fits=False)
    if not pair.runs:
        return Said(True, fits=True)
    answer = load(pair.target, draft=pair.draft).generate([100, 101], limits=Limits(RUN_TOKENS, ignore_eos=True))
    assert answer.result().stats.num_tokens == RUN_TOKENS
    return Said(True, True, True, True)


def ask_all(pair: PairToTry, here: Machine, context: int | None) -> dict[str, Said]:
    target, draft = str(pair.target), str(pair.draft)
    with simulated(here):
        examined = examine(Case(target, draft, pair.engine, context=context))
        planned = plan(PlanOptions(target=target, draft=draft, engine=pair.engine, context=context))
        said = {"doctor": of_findings(not examined.is_blocked, examined), "plan": of_findings(planned.fits, planned)}
        found = pairs(PairsOptions(target, (pair.draft,), context, engine=pair.engine))
        assert isinstance(found, RankedDrafts)
        said["pairs"] = of_pairs(next(entry for entry in found.ranked if entry.candidate.path == pair.draft))
        loading = of_loading(pair, here)
    return said | ({"load": loading} if loading else {})


def contradictions(said: dict[str, Said]) -> list[str]:
    """Where two of them differ. `pairs` may leave out what the doctor only warns of, but never the reverse."""
    found = []
    for what in ("fits", "vocabulary", "files", "speedup"):
        values = {who: getattr(one, what) for who, one in said.items() if getattr(one, what) is not None}
        if len(set(values.values())) > 1:
            found.append(f"{what}: {', '.join(f'{who} {value}' for who, value in values.items())}")
    doctor, plan_said, pairs_said = said["doctor"], said["plan"], said["pairs"]
    if doctor.usable != plan_said.usable:
        found.append(f"usable: doctor {doctor.usable}, plan {plan_said.usable}")
    if pairs_said.usable and not doctor.usable:
        found.append("pairs proposes what the doctor blocks")
    return found


# -- the table --------------------------------------------------------------------------------------------------------


def word(said: dict[str, Said]) -> str:
    doctor = said["doctor"]
    if doctor.files is False:
        return "files"
    if doctor.vocabulary is False:
        return "vocabulary"
    if doctor.fits is False:
        return "no room"
    if not doctor.usable:
        return "blocked"
    return f"{doctor.speedup:.2f}x" if doctor.speedup else "ok"


def tabulate(found: list[PairToTry], machines: dict[str, Machine], context: int | None) -> int:
    """Prints a row for each machine; returns the number of contradictions."""
    wrong = []
    width = max(map(len, machines)) + 2
    for number, pair in enumerate(found, 1):
        print(f"{number:2} {pair.name} ({pair.engine})")
    print("\n" + " " * width + "".join(f"{number:>11}" for number in range(1, len(found) + 1)))
    for name, here in machines.items():
        cells = []
        for pair in found:
            said = ask_all(pair, here, context)
            bad = contradictions(said)
            wrong += [f"{name}, {pair.name}: {line}" for line in bad]
            cells.append(f"{'!' if bad else ''}{word(said)}{'*' if 'load' in said else ''}")
        print(f"{name:{width}}" + "".join(f"{cell:>11}" for cell in cells), flush=True)
    print(f"\n* loading was asked too. {len(machines) * len(found)} cells, {len(wrong)} contradictions")
    for line in wrong:
        print(f"CONTRADICTION {line}")
    return len(wrong)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run", nargs=2, type=Path, metavar=("TARGET", "DRAFT"), help="a pair of real models")
    parser.add_argument("--context", type=int, help="tokens; left out, each command assumes its own")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if fake_models.needs_room(Path(folder)):
            print("this file system has no sparse files: set TMPDIR to one that has", file=sys.stderr)
            return 2
        for variable in ("SLIPSTREAM_CACHE", "OLLAMA_MODELS", "HF_HUB_CACHE"):
            os.environ[variable] = f"{folder}/{variable}"  # empty stores
        found = make_pairs(Path(folder))
        if given.run:
            found.append(PairToTry("real, runs", *given.run, "slipstream", runs=True))
        try:
            return 1 if tabulate(found, MACHINES, given.context) else 0
        except SlipstreamError as error:
            print(f"stopped: {error}", file=sys.stderr)
            return 1


if __name__ == "__main__":
    sys.exit(main())
