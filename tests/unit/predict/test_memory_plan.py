from __future__ import annotations

import json
from dataclasses import replace

import pytest

from slipstream.catalogue.stated_sizes import Stated, sizes_from
from slipstream.engines import find_folder, folders
from slipstream.errors import UsageError
from slipstream.predict.forecast import Forecast, forecast
from slipstream.predict.gpus import Gpu, parse_nvidia_smi
from slipstream.predict.machine import Machine
from slipstream.predict.memory import GIB, GPU_CODES_SHARE, MemoryRoom, Need
from slipstream.predict.packages import InstalledPackage
from slipstream.predict.placement import MemoryPlacement, check, plan
from slipstream.predict.sizes import KvType, Sizes
from slipstream.tasks.options import PlanOptions
from slipstream.tasks.plan import plan as plan_task
from slipstream.tasks.plan import split_settings

# The story: a 70B model as EXL2 at 2.5 bits beside a TinyLlama at 4.5, on an RTX 5090 and an RTX 4090.
TARGET = Sizes("Midnight-Miqu-70B", 22_000_000_000, 69_000_000_000, 80, 8, 128, 32768, 32000, 8192)
DRAFT = Sizes("TinyLlama-1.1B", 620_000_000, 1_100_000_000, 22, 4, 64, 2048, 32000, 2048)
CARDS = (32 * GIB, 24 * GIB)


def part(made: MemoryPlacement, label: str) -> int:
    return next(p.num_bytes for p in made.parts if p.label == label)


def story(kv: KvType = "q4", context: int = 16384, **changes: object) -> MemoryPlacement:
    values = {"target": TARGET, "draft": DRAFT, "gpus": CARDS, "engine": "tabbyapi"} | changes
    room, engine = MemoryRoom(values["gpus"]), find_folder(str(values["engine"])).facts
    return plan(values["target"], values["draft"], Need(context, kv), room, engine)


# -- the story


def test_the_storys_models_fit_with_room() -> None:
    made = story()
    assert made.fits and check(made) == []
    assert part(made, "target weights") == 22_000_000_000
    assert 25e9 < made.total_bytes < 29e9  # of 60 GB
    assert made.max_context == made.max_context_without_draft == 32768


@pytest.mark.parametrize(("kv", "gigabytes"), [("f16", 5.37), ("q8", 2.85), ("q4", 1.51)])
def test_kv_of_16k_tokens_to_the_byte(kv: KvType, gigabytes: float) -> None:
    """The story says about 4 GB for q4. 2 x 80 layers x 8 heads x 128 x 16,384 tokens at 4.5 bits are 1.51 GB."""
    assert part(story(kv), "target KV") / 1e9 == pytest.approx(gigabytes, abs=0.005)
    assert part(story("f16"), "target KV") == 2 * 80 * 8 * 128 * 2 * 16384


def test_even_the_storys_own_4_gb_would_fit() -> None:
    assert story("f16").fits  # 5.4 GB, more than the story feared


def test_the_draft_takes_about_what_the_story_says() -> None:
    made = story("f16")
    with_draft = made.total_bytes - story("f16", draft=None).total_bytes
    assert 0.9e9 < with_draft < 3e9
    assert part(made, "draft KV") == 2 * 22 * 4 * 64 * 2 * 16384


def test_layers_are_split_in_proportion_and_the_draft_stays_whole() -> None:
    made = story()
    first, second = made.gpus
    assert first.num_layers + second.num_layers == 80
    assert first.num_layers > second.num_layers
    assert sorted([first.draft_bytes > 0, second.draft_bytes > 0]) == [False, True]
    shares = [gpu.used / gpu.capacity for gpu in made.gpus]
    assert shares[0] == pytest.approx(shares[1], abs=0.05)


def test_nothing_is_lost_in_the_split() -> None:
    made = story()
    split = sum(p.num_bytes for p in made.parts if p.place == "split")
    assert sum(gpu.target_bytes for gpu in made.gpus) == pytest.approx(split, abs=len(made.gpus))
    each = sum(p.num_bytes for p in made.parts if p.place == "each")
    assert all(gpu.overhead_bytes == each for gpu in made.gpus)


# -- what fits


def test_a_plan_that_does_not_fit_says_what_would() -> None:
    too_long = story("f16", 32768, gpus=(24 * GIB,))
    assert not too_long.fits
    (finding,) = check(too_long)
    assert (finding.id, finding.severity) == ("fit-memory", "blocks")
    assert f"{too_long.max_context:,}" in finding.fix and 0 < too_long.max_context < 32768


def test_leaving_the_draft_out_is_proposed_where_that_helps() -> None:
    heavy = replace(DRAFT, weight_bytes=3_000_000_000)
    made = story("f16", 4096, draft=heavy, gpus=(24 * GIB,))
    assert made.max_context == 0 < made.max_context_without_draft
    assert "Run without the draft model" in check(made)[0].fix


def test_weights_that_do_not_fit_at_all() -> None:
    made = story(gpus=(16 * GIB,))
    assert (made.fits, made.max_context, made.max_context_without_draft) == (False, 0, 0)
    assert "smaller quantisation" in check(made)[0].fix


def test_the_longest_context_is_the_longest() -> None:
    limit = story("f16", gpus=(24 * GIB,)).max_context
    assert limit % 256 == 0
    assert story("f16", limit, gpus=(24 * GIB,)).fits
    assert not story("f16", limit + 256, gpus=(24 * GIB,)).fits


def test_smaller_kv_types_give_longer_contexts() -> None:
    f16, q8, q4 = (story(kv, gpus=(24 * GIB,)).max_context for kv in ("f16", "q8", "q4"))
    assert f16 < q8 < q4


def test_a_close_fit_is_noted() -> None:
    limit = story("f16", gpus=(24 * GIB,)).max_context
    assert [f.id for f in check(story("f16", limit, gpus=(24 * GIB,)))] == ["fit-memory-tight"]


def test_a_context_beyond_the_models_is_noted() -> None:
    assert any("context of TinyLlama-1.1B is 2,048 tokens" in note for note in story().notes)


# -- engines


def test_tensor_parallel_engines_are_limited_by_the_smallest_gpu() -> None:
    made = story(engine="vllm", gpus=(80 * GIB, 8 * GIB))
    assert not made.fits
    assert made.gpus[0].target_bytes == made.gpus[1].target_bytes
    assert any("smallest" in note for note in made.notes)
    assert any("does not support a q4 KV cache" in note for note in made.notes)
    assert story("q8", engine="llama.cpp", gpus=(80 * GIB, 8 * GIB)).fits


def test_slipstream_expands_weights_and_uses_one_gpu() -> None:
    made = story("f16", engine="slipstream")
    assert part(made, "target weights") == 2 * 69_000_000_000
    assert len(made.gpus) == 1 and not made.fits


@pytest.mark.parametrize(
    "engine", [*(folder.name for folder in folders()), "llama.cpp", "llamacpp", "llama-cpp-python", "exllamav2", "vLLM"]
)
def test_every_engine_plans(engine: str) -> None:
    made = story("f16", engine=engine, target=replace(TARGET, num_parameters=7_000_000_000, weight_bytes=4_000_000_000))
    assert made.fits and made.engine == find_folder(engine).facts.title


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"engine": "vlm"}, "vllm"), ({"gpus": ()}, "memory"), ({"gpus": (0,)}, "memory"), ({"context": 0}, "context")],
)
def test_bad_requests_are_refused(changes: dict, message: str) -> None:
    context = changes.pop("context", 4096)
    with pytest.raises(UsageError, match=message):
        story(context=context, **changes)


# -- sizes that are only stated


def test_a_published_shape_stands_in() -> None:
    sizes, notes = sizes_from(Stated(22, like="llama-2-70b-chat-hf"), "target")
    assert (sizes.num_layers, sizes.num_kv_heads, sizes.head_dim) == (80, 8, 128)
    assert sizes.weight_bytes == 22_000_000_000 and notes == []


def test_a_shape_that_is_given_needs_no_assumption() -> None:
    sizes, notes = sizes_from(Stated(22, None, 80, 8, 128), "target")
    assert (sizes.num_layers, sizes.num_kv_heads, sizes.head_dim, notes) == (80, 8, 128, [])


def test_a_guess_from_the_size_alone_is_said() -> None:
    sizes, (note,) = sizes_from(Stated(4.9), "target")
    assert 7e9 < sizes.num_parameters < 9e9
    assert "4.85 bits" in note and "--layers" in note


def test_an_unknown_shape_and_no_weights_are_refused() -> None:
    with pytest.raises(UsageError, match="Llama-2-70b-chat-hf"):
        sizes_from(Stated(22, like="llama-99b"), "target")
    with pytest.raises(UsageError, match="more than 0"):
        sizes_from(Stated(0), "draft")


@pytest.mark.parametrize("weights_gb", [float("nan"), float("inf"), 1e400, -1.0, 1e9])
def test_sizes_that_can_not_be_are_refused(weights_gb: float) -> None:
    with pytest.raises(UsageError, match="expected more than 0"):
        sizes_from(Stated(weights_gb), "target")
    with pytest.raises(UsageError, match="expected 1 to"):
        sizes_from(Stated(5, None, -1), "target")
    with pytest.raises(UsageError, match="expected 1 to"):
        Need.of(TARGET, 10**12)


@pytest.mark.parametrize("gpus", ["nan", "inf", "1e400", "24,-1", "0", "1e9", "24,", "abc"])
def test_gpus_that_can_not_be_are_refused(gpus: str) -> None:
    with pytest.raises(UsageError, match="--gpus"):
        plan_task(PlanOptions(weights_gb=5, gpus=gpus))


# -- main memory


def on(machine: Machine, target: Sizes = TARGET, context: int | None = None, engine: str = "llama.cpp") -> Forecast:
    return forecast(machine, target, None, find_folder(engine).facts, Need.of(target, context))


PC = Machine("a CPU", 16, 64 << 30, 48 << 30, 60e9, parse_nvidia_smi("NVIDIA GeForce RTX 3060, 12288, 11800, 8.6, 570"))
PLAIN = replace(PC, gpus=())


def test_layers_that_do_not_fit_on_the_gpu_stay_in_main_memory() -> None:
    expected = on(PC)
    made = expected.memory
    assert made.fits and made.main and made.gpus[0].num_layers + made.main.num_layers == 80
    assert [finding.id for finding in expected.findings] == ["fit-memory-offload"]
    assert f"-ngl {made.gpus[0].num_layers}" in expected.findings[0].fix
    assert on(PLAIN).target.forward_s(1) > expected.target.forward_s(1) > on(PC, DRAFT).target.forward_s(1)


@pytest.mark.parametrize("engine", ["vllm", "tabbyapi"])
def test_engines_that_can_not_do_that_are_blocked(engine: str) -> None:
    expected = on(PC, engine=engine)
    assert expected.is_refused and expected.findings[0].id == "fit-memory"
    assert on(PLAIN, engine="tabbyapi").findings[0].id == "fit-needs-gpu"


def test_a_model_larger_than_main_memory_is_blocked() -> None:
    laptop = replace(PLAIN, memory_free=12 << 30)
    (finding,) = on(laptop).findings
    assert (finding.id, finding.severity) == ("fit-memory", "blocks")
    assert "12.9 GB of main memory free" in finding.evidence and "(assumed)" in finding.evidence
    assert "from disk" in finding.cause and "a machine with more memory" in finding.fix


def test_an_assumed_context_does_not_block_what_a_shorter_one_allows() -> None:
    laptop = replace(PLAIN, memory_free=int(24e9))
    (assumed,), (given,) = on(laptop).findings, on(laptop, context=8192).findings
    assert (assumed.id, assumed.severity, given.severity) == ("fit-memory-context", "slows", "blocks")
    assert "8,192" in assumed.cause and "assumed" in assumed.cause


def test_the_memory_of_an_apple_machine_is_counted_once() -> None:
    gpu = Gpu("Apple M2 Max", "apple", 24 << 30, 24 << 30, None, 400e9, None)
    apple = replace(PLAIN, memory_free=27 << 30, gpus=(gpu,))
    assert on(apple).memory.main is None
    tight = on(replace(apple, gpus=(replace(gpu, memory_free=20 << 30),)))
    assert tight.memory.main and tight.memory.main.capacity == 7 << 30


def test_slipstream_uses_a_gpu_that_its_packages_see() -> None:
    small = replace(DRAFT, format="gguf", architecture="llama")
    seeing = replace(
        PC, torch=InstalledPackage("2.9", "CUDA 12.8", True), llama_cpp=InstalledPackage("0.3", None, False)
    )
    blind = replace(seeing, torch=InstalledPackage("2.9+cpu", None, False))
    held = on(seeing, small, engine="slipstream").memory.held("target weights")
    assert held == int(GPU_CODES_SHARE * small.weight_bytes)  # quantised weights stay codes
    old = replace(seeing, gpus=tuple(replace(gpu, compute_capability=7.5) for gpu in seeing.gpus))
    assert on(old, small, engine="slipstream").memory.held("target weights") == 2 * small.num_parameters
    made = on(blind, small, engine="slipstream").memory
    assert not made.gpus and made.held("target weights") == int(1.15 * small.weight_bytes)  # codes, on the CPU
    folder = on(blind, replace(small, format="safetensors"), engine="slipstream").memory
    assert folder.held("target weights") == made.held("target weights")
    floats = replace(small, format="safetensors", weight_bytes=2 * small.num_parameters)
    assert on(blind, floats, engine="slipstream").memory.held("target weights") == 4 * small.num_parameters
    whole = replace(small, weight_bytes=2 * small.num_parameters)  # 16 bits each: llama.cpp, on the CPU
    assert on(blind, whole, engine="slipstream").memory.held("target weights") == whole.weight_bytes
    metal = replace(
        seeing,
        llama_cpp=InstalledPackage("0.3", "Metal", True),
        gpus=(Gpu("Apple M2", "apple", 24 << 30, 20 << 30, None, 100e9, None),),
    )
    assert on(metal, small, engine="slipstream").memory.held("target weights") == small.weight_bytes  # llama.cpp too


def test_the_split_is_told_in_the_words_of_the_engines() -> None:
    settings = split_settings(story())
    first, second = story().gpus
    assert settings["tensor_split"] == f"{first.num_layers},{second.num_layers}"
    sizes = json.loads(settings["gpu_split"])
    assert len(sizes) == 2 and sizes[0] > sizes[1] > 5
    assert split_settings(story(engine="vllm")) == {} == split_settings(story(gpus=(48 * GIB,)))
