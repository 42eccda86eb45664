from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import tiny_gguf
from cpu_time import cpu_seconds
from slipstream.catalogue import model_scan
from slipstream.catalogue.families import FAMILIES, member_named, recognise
from slipstream.catalogue.pairs import FoundModel, PairJudge, candidate, find, groups, rank, suggestions
from slipstream.engines import find_folder
from slipstream.engines.facts import EngineFacts
from slipstream.models import open_checkpoint, resolve
from slipstream.predict.gpus import parse_nvidia_smi
from slipstream.predict.machine import Machine
from slipstream.predict.packages import InstalledPackage
from slipstream.predict.sizes import Sizes
from slipstream.tasks.pairs import judge_of
from slipstream.vocabularies.token_strings import fingerprint, token_strings
from unit.models import model_files

MACHINE = Machine(
    "a CPU", 16, 64 << 30, 48 << 30, 60e9,
    parse_nvidia_smi("NVIDIA GeForce RTX 4070 Ti SUPER, 16376, 15900, 8.9, 560.35\n"),
)  # fmt: skip
LLAMA3 = next(f for f in FAMILIES if f.name == "Llama 3.x")
MISTRAL = next(f for f in FAMILIES if f.name.startswith("Mistral v0.1"))
LLAMA2 = next(f for f in FAMILIES if f.name == "Llama 2")
QWEN = next(f for f in FAMILIES if f.name == "Qwen2.5")
pytestmark = pytest.mark.usefixtures("own_stores")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return tmp_path / "models"


def words(size: int = 300, prefix: str = "t") -> list[str]:
    return tiny_gguf.vocabulary(size, {}, prefix)


def sized(spec: str, params: float, gigabytes: float, vocabulary: str = "v", context: int = 131072) -> FoundModel:
    sizes = Sizes(spec, int(gigabytes * 1e9), int(params * 1e9), 28, 8, 128, context)
    return FoundModel(spec, Path("/nowhere") / spec, sizes, "llama", vocabulary, 128256)


LLAMA_CPP, OWN = (find_folder(name).facts for name in ("llama.cpp", "slipstream"))


def made_up(machine: Machine = MACHINE, engine: EngineFacts = LLAMA_CPP, context: int | None = None) -> PairJudge:
    """A judge of models that have no files: nothing speaks against them but their sizes."""
    return PairJudge(machine, engine, lambda target, draft: [], context)


# -- finding


def test_folders_are_searched(models: Path) -> None:
    tiny_gguf.write(models / "a.gguf", words())
    tiny_gguf.write(models / "deep" / "er" / "b.gguf", words())
    tiny_gguf.write(models / "mmproj-c.gguf", words())
    tiny_gguf.write(models / "d-00002-of-00003.gguf", words())
    model_files.save_model(models / "folder", "Llama")
    (models / "notes.txt").write_text("no model")
    found = find([models])
    assert [Path(c.spec).name for c in found] == ["a.gguf", "b.gguf", "folder"]
    assert all(c.problem is None and c.sizes for c in found)


def test_the_folder_of_a_model_is_searched_and_not_what_is_below_it(models: Path) -> None:
    tiny_gguf.write(models / "a.gguf", words())
    tiny_gguf.write(models / "b.gguf", words())
    tiny_gguf.write(models / "deep" / "c.gguf", words())
    assert [Path(c.spec).name for c in find(stores=False, beside=models / "a.gguf")] == ["a.gguf", "b.gguf"]
    assert find(stores=False, beside=Path("org/name")) == []


def test_all_stores_are_searched_and_each_model_is_named_as_commands_take_it(own_stores: Path, models: Path) -> None:
    file = tiny_gguf.write(models / "x.gguf", words())
    folder = models / "folder"
    model_files.save_model(folder, "Llama")
    tiny_gguf.put_in_ollama(own_stores / "ollama", "llama3.2", "3b", file)
    tiny_gguf.put_in_hub_cache(own_stores / "hub", "org/whole", list(folder.iterdir()))
    tiny_gguf.put_in_hub_cache(own_stores / "hub", "org/gguf-model", [file])
    builtin = own_stores / "cache" / "models" / "smollm2-135m.gguf"
    tiny_gguf.write(builtin, words())
    found = find()
    assert {c.spec for c in found} == {"smollm2-135m", "ollama:llama3.2:3b", "org/whole", "org/gguf-model:x.gguf"}
    assert {c.sizes.name for c in found if c.sizes} == {"smollm2-135m", "llama3.2:3b", "whole", "gguf-model:x"}
    assert all(c.problem is None for c in found)


def test_the_same_file_is_listed_once(models: Path) -> None:
    tiny_gguf.write(models / "a.gguf", words())
    (models / "link.gguf").symlink_to(models / "a.gguf")
    assert len(find([models, models / "a.gguf"])) == 1


def test_the_parts_of_a_split_file_are_found_through_the_links_of_the_hub_cache(own_stores: Path, models: Path) -> None:
    models.mkdir()
    files = [models / f"x-0000{number}-of-00002.gguf" for number in (1, 2)]
    for file in files:
        model_files.write_gguf(file, metadata={"split.count": 2})
    tiny_gguf.put_in_hub_cache(own_stores / "hub", "org/split", files)
    (found,) = find()
    assert found.spec == f"org/split:{files[0].name}" and found.problem is None
    assert found.sizes and found.sizes.weight_bytes == sum(file.stat().st_size for file in files)


def test_empty_and_missing_places_give_nothing(tmp_path: Path) -> None:
    assert find([tmp_path / "nowhere"]) == []


@pytest.mark.parametrize("damage", ["empty", "cut", "garbage", "pointer", "cut weights"])
def test_a_damaged_file_is_listed_and_stops_nothing(models: Path, damage: str) -> None:
    sound = tiny_gguf.write(models / "sound.gguf", words())
    data = sound.read_bytes()
    (models / "bad.gguf").write_bytes(
        {
            "empty": b"",
            "cut": data[:200],
            "garbage": os.urandom(5000),
            "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
            "cut weights": data[:-64],
        }[damage]
    )
    by_name = {Path(c.spec).name: c for c in find([models])}
    assert by_name["sound.gguf"].problem is None
    assert by_name["bad.gguf"].problem and by_name["bad.gguf"].vocabulary is None


def test_a_broken_folder_is_listed_with_the_reason(models: Path) -> None:
    model_files.save_model(models / "folder", "Llama")
    (models / "folder" / "tokenizer.json").write_text("{}")
    (found,) = find([models])
    assert "vocabulary" in (found.problem or "") or "tokenizer" in (found.problem or "")


# -- the memory of scans


def test_a_second_scan_reads_no_model(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_gguf.write(models / "a.gguf", words(50_000))
    (models / "bad.gguf").write_bytes(b"GGUF")
    first = find([models])
    monkeypatch.setattr(model_scan, "read_candidate", lambda spec, path: pytest.fail("read again"))
    started = cpu_seconds()
    assert find([models]) == first
    assert cpu_seconds() - started < 1


def test_a_changed_file_is_read_again(models: Path) -> None:
    path = tiny_gguf.write(models / "a.gguf", words())
    (before,) = find([models])
    tiny_gguf.write(path, words(prefix="other"))
    (after,) = find([models])
    assert before.vocabulary != after.vocabulary


@pytest.mark.parametrize("content", ["", "[]", '{"schema": 1}', '{"schema": 1, "entries": {"x": 3}}', "\x00"])
def test_a_spoilt_memory_costs_nothing_but_time(own_stores: Path, models: Path, content: str) -> None:
    tiny_gguf.write(models / "a.gguf", words())
    memory = own_stores / "cache" / "doctor" / "models.json"
    memory.parent.mkdir(parents=True)
    memory.write_text(content)
    assert find([models])[0].problem is None
    assert json.loads(memory.read_text())["entries"]


def test_a_memory_that_cannot_be_written_is_done_without(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_gguf.write(models / "a.gguf", words())
    (models / "file").write_text("")
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(models / "file" / "below"))
    assert find([models], stores=False)[0].problem is None


# -- vocabularies


def test_one_vocabulary_in_two_formats_is_one_group(models: Path) -> None:
    model_files.save_model(models / "folder", "Llama")
    model_files.write_gguf(models / "same.gguf")
    tiny_gguf.write(models / "other.gguf", words())
    grouped = list(groups(find([models])).values())
    assert [sorted(Path(c.spec).name for c in group) for group in grouped] == [["folder", "same.gguf"], ["other.gguf"]]


def test_the_fingerprint_is_that_of_the_full_tokenizer(models: Path) -> None:
    model_files.save_model(models / "folder", "Llama")
    model_files.write_gguf(models / "same.gguf")
    for path in (models / "folder", models / "same.gguf"):
        assert fingerprint(token_strings(path)) == open_checkpoint(path).tokenizer.fingerprint()


def test_padding_does_not_part_qwen_models(models: Path) -> None:
    """151,936 rows against 152,064, as Qwen2.5 has them: 151,665 tokens and padding."""
    tokens = tiny_gguf.vocabulary(151_665, QWEN.samples)
    for name, rows, layers in (("small", 151_936, 1), ("large", 152_064, 6)):
        padded = tokens + [f"[PAD{i}]" for i in range(len(tokens), rows)]
        tiny_gguf.write(models / f"{name}.gguf", padded, layers=layers, hidden=64 if layers > 1 else 8)
    found = find([models])
    assert len(groups(found)) == 1
    large = next(c for c in found if "large" in c.spec)
    (ranked,) = rank(large, found, judge_of(MACHINE, LLAMA_CPP))
    assert ranked.prediction and ranked.rejection is None
    assert large.family == "Qwen2.5" and large.num_tokens == 151_665


@pytest.mark.real_model
def test_the_built_in_model_is_what_the_table_says_of_its_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the model itself is in the user's own cache
    strings = token_strings(resolve("smollm2-135m"))
    family = recognise(strings)
    assert family is not None and family.name == "SmolLM2" and family.source == "verified"
    assert fingerprint(strings) == family.fingerprint


def test_families_are_told_apart_by_their_samples() -> None:
    for family in FAMILIES:
        size = max(*family.vocab_sizes, *family.samples) + 1
        strings = tiny_gguf.vocabulary(size, family.samples)
        assert recognise(strings) is family, family.name
    assert recognise(words(200_000)) is None
    assert recognise([]) is None


def test_family_members_are_found_by_name() -> None:
    member = member_named("TINYLLAMA-1.1B-chat-v1.0")
    assert member is not None and member.context_length == 2048
    assert member_named("gpt-5") is None


# -- ranking


def test_the_ollama_story(own_stores: Path, models: Path) -> None:
    """llama3.2:3b, llama3.2:1b and others: the pair is found and ranked first, with settings and tokens/s."""
    llama3 = tiny_gguf.vocabulary(128_256, LLAMA3.samples)
    store = own_stores / "ollama"
    for name, tag, tokens, layers, hidden in (
        ("llama3.2", "3b", llama3, 28, 32),
        ("llama3.2", "1b", llama3, 16, 8),
        ("llama3.1", "8b", llama3, 32, 64),
        ("qwen2.5", "0.5b", tiny_gguf.vocabulary(151_665, QWEN.samples), 24, 8),
        ("tinyllama", "latest", tiny_gguf.vocabulary(32_000, LLAMA2.samples), 22, 8),
    ):
        file = tiny_gguf.write(models / "made.gguf", tokens, layers=layers, hidden=hidden)
        tiny_gguf.put_in_ollama(store, name, tag, file)
    ranked = rank(candidate("ollama:llama3.2:3b"), find(), judge_of(MACHINE, LLAMA_CPP))
    first, *others = ranked
    assert first.candidate.spec == "ollama:llama3.2:1b" and first.prediction
    assert first.prediction.n_draft >= 1 and 0 <= first.prediction.p_min <= 0.9
    assert first.prediction.tokens_per_s > 0
    reasons = {entry.candidate.spec: entry.rejection for entry in others}
    assert "not smaller" in reasons["ollama:llama3.1:8b"]
    assert "another vocabulary" in reasons["ollama:qwen2.5:0.5b"]
    assert "another vocabulary" in reasons["ollama:tinyllama:latest"]


def test_the_storys_expected_speed_comes_from_the_bandwidth() -> None:
    target, draft = sized("llama3.2:3b", 3.2, 2.02), sized("llama3.2:1b", 1.24, 1.32)
    (entry,) = rank(target, [target, draft], made_up())
    assert entry.prediction and 130 < entry.prediction.plain_tokens_per_s < 333  # of 672 GB/s


def test_the_exl2_story(models: Path) -> None:
    """A 70B model with Mistral's vocabulary: neither TinyLlama nor Llama 3.2 nor Qwen can draft, and why."""
    target = models / "Midnight-Miqu-70B-exl2"
    model_files.save_model(target, "Llama")
    config = json.loads((target / "config.json").read_text())
    config |= {"quantization_config": {"quant_method": "exl2", "bits": 2.5}, "num_hidden_layers": 80}
    (target / "config.json").write_text(json.dumps(config | {"hidden_size": 8192, "intermediate_size": 28672}))
    tokens = tiny_gguf.vocabulary(32_000, {0: "<unk>", 1: "<s>", 2: "</s>"} | MISTRAL.samples)
    vocab = {text: i for i, text in enumerate(tokens)}
    (target / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": vocab, "merges": []}}))
    tiny = {0: "<unk>", 1: "<s>", 2: "</s>"} | LLAMA2.samples
    tiny_gguf.write(models / "TinyLlama-1.1B.gguf", tiny_gguf.vocabulary(32_000, tiny))
    tiny_gguf.write(models / "Llama-3.2-1B.gguf", tiny_gguf.vocabulary(128_256, LLAMA3.samples))
    tiny_gguf.write(models / "Qwen2.5-0.5B.gguf", tiny_gguf.vocabulary(151_936, QWEN.samples))
    found = find([models])
    wanted = next(c for c in found if "Miqu" in c.spec)
    ranked = {Path(r.candidate.spec).stem: r for r in rank(wanted, found, judge_of(MACHINE, LLAMA_CPP))}
    assert len(ranked) == 3 and all(r.prediction is None for r in ranked.values())
    # As many ids as TinyLlama, other strings: the first that differ are named.
    assert "id 260 is '▁▁▁▁' in the target and 't260' here" in (ranked["TinyLlama-1.1B"].rejection or "")
    assert "id 0 is '<unk>'" in (ranked["Llama-3.2-1B"].rejection or "")
    family, lines = suggestions(wanted)
    assert family is MISTRAL and any("n-grams" in line for line in lines)


def test_drafts_are_ranked_by_speed_and_rejections_come_last() -> None:
    target = sized("70b", 70, 40)
    others = [sized("8b", 8, 4.9), sized("1b", 1.2, 0.8), sized("broken", 1, 1), sized("405b", 405, 230)]
    others[2] = FoundModel("broken", Path("/nowhere/broken"), problem="it is empty")
    big = Machine("a CPU", 16, 64 << 30, 48 << 30, 60e9, parse_nvidia_smi("NVIDIA H200, 143771, 143000, 9.0, 570.1\n"))
    ranked = rank(target, others, made_up(big))
    assert [r.candidate.spec for r in ranked[:2]] == ["1b", "8b"]
    assert ranked[0].prediction and ranked[0].prediction.speedup > 1.5
    assert {r.candidate.spec: r.rejection for r in ranked[2:]}["broken"] == "can't be read: it is empty"


def test_a_short_context_is_noted_or_rejected() -> None:
    target, draft = sized("7b", 7, 4, context=32768), sized("tiny", 0.2, 0.1, context=2048)
    (noted,) = rank(target, [draft], made_up())
    assert noted.prediction and "2,048" in (noted.note or "")
    (rejected,) = rank(target, [draft], made_up(context=8192))
    assert rejected.rejection == "context too short: trained for 2,048 tokens, the workload has 8,192"
    (kept,) = rank(target, [draft], made_up(context=2048))
    assert kept.prediction


def test_a_pair_that_does_not_pay_is_said_to(models: Path) -> None:
    target, draft = sized("3b", 3.2, 2.0), sized("3b-fp16 twin", 3.1, 6.2)
    (entry,) = rank(target, [draft], made_up())
    assert entry.prediction and entry.prediction.speedup < 1 and "not expected to pay" in (entry.note or "")


def test_slipstream_is_predicted_with_the_weights_that_it_holds() -> None:
    """Q4 files expand to 2 bytes a weight on a GPU: slower plain, and rows cost relatively less."""
    target, draft = sized("3b", 3.2, 2.02), sized("1b", 1.24, 0.81)
    machine = replace(MACHINE, torch=InstalledPackage("2.9.0", "CUDA 12.8", True))
    (stored,), (held,) = (rank(target, [draft], made_up(machine, engine)) for engine in (LLAMA_CPP, OWN))
    assert stored.prediction and held.prediction
    ratio = stored.prediction.plain_tokens_per_s / held.prediction.plain_tokens_per_s
    assert 2.5 < ratio < 2 * 3.2 / 2.02
    assert held.prediction.speedup > stored.prediction.speedup


# -- when nothing local fits


def test_published_drafts_are_proposed_smallest_first(models: Path) -> None:
    path = tiny_gguf.write(models / "llama3.gguf", tiny_gguf.vocabulary(128_256, LLAMA3.samples), layers=2)
    (found,) = find([path])
    assert found.sizes is not None
    as_large = FoundModel(found.spec, found.path, Sizes("8b", 1, 8 * 10**9, 1, 1, 1), "llama", found.vocabulary)
    family, lines = suggestions(as_large)
    assert family is LLAMA3
    assert lines[0].startswith("meta-llama/Llama-3.2-1B-Instruct")


def test_an_unknown_vocabulary_is_told_to_draft_without_a_model(models: Path) -> None:
    tiny_gguf.write(models / "odd.gguf", words())
    family, lines = suggestions(find([models])[0])
    assert family is None and "--drafter suffix" in lines[0]


def test_a_folder_of_many_models_is_scanned_quickly(models: Path) -> None:
    tiny_gguf.write(models / "0.gguf", words(32_000))
    for number in range(1, 30):
        shutil.copy(models / "0.gguf", models / f"{number}.gguf")
    started = cpu_seconds()
    assert len(find([models])) == 30
    assert cpu_seconds() - started < 30
