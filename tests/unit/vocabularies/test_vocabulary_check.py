from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers

import small_models
from slipstream.engines import find_folder, folders
from slipstream.errors import ModelNotFoundError, UsageError
from slipstream.findings import Finding, blocks
from slipstream.models.text.tokenizer import Tokenizer, same_vocabulary
from slipstream.models.text.tokenizer_gguf import tokenizer_from_metadata
from slipstream.vocabularies import checks
from slipstream.vocabularies.comparison import compare, load_tokenizer
from unit.models import model_files


def check(target: Tokenizer, draft: Tokenizer, engine: str, *sizes: int) -> list[Finding]:
    return checks.check(target, draft, find_folder(engine).facts, *sizes)


def check_specs(target: str | Path, draft: str | Path, engine: str) -> list[Finding]:
    return checks.check_specs(target, draft, find_folder(engine).facts)


PATH = Path("m.gguf")
SPM_SPECIALS = ["<unk>", "<s>", "</s>"]
SPM_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def byte_level(tokens: list[str], **changes: object) -> Tokenizer:
    """A byte-level tokenizer without merges; the first three tokens are control tokens."""
    values: dict[str, object] = {
        "model": "gpt2",
        "pre": "llama-bpe",
        "tokens": tokens,
        "token_type": np.array([3] * 3 + [5 if t.startswith("[PAD") else 1 for t in tokens[3:]]),
        "merges": [],
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    metadata: dict[str, object] = {f"tokenizer.ggml.{key}": value for key, value in (values | changes).items()}
    return tokenizer_from_metadata(metadata | {"tokenizer.chat_template": changes.get("template", "{{ x }}")}, PATH)


def spm(pieces: list[str]) -> Tokenizer:
    """A SentencePiece tokenizer as GGUF has it."""
    tokens = [*SPM_SPECIALS, *SPM_BYTES, *pieces]
    metadata: dict[str, object] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([2, 3, 3] + [6] * 256 + [1] * len(pieces)),
        "tokenizer.ggml.scores": np.zeros(len(tokens), np.float32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    return tokenizer_from_metadata(metadata, PATH)


def words(count: int, prefix: str = "w", start: int = 0) -> list[str]:
    return ["<|begin|>", "<|end|>", "<|turn|>", *(f"{prefix}{i}" for i in range(start, start + count - 3))]


def padded(tokens: list[str], rows: int) -> list[str]:
    return tokens + [f"[PAD{i}]" for i in range(len(tokens), rows)]


def ids(findings: list[Finding]) -> set[str]:
    return {finding.id for finding in findings}


def only(findings: list[Finding], id: str) -> Finding:
    (found,) = [finding for finding in findings if finding.id == id]
    return found


# --- comparing


def test_equal_tokenizers() -> None:
    comparison = compare(byte_level(words(100)), byte_level(words(100)))
    assert comparison.same_tokens and comparison.target.rows == comparison.draft.rows
    assert (comparison.num_equal, comparison.num_differing, comparison.overlap) == (100, 0, 1.0)
    assert comparison.first_differences == () and comparison.special_differences == ()
    assert comparison.same_normaliser is comparison.same_pre_tokenizer is comparison.same_merges is True
    assert comparison.same_chat_template is True


def test_the_first_differing_ids_are_named() -> None:
    ours, theirs = words(100), words(100)
    for token_id in (7, 20, 21, 22, 50, 90, 99):
        theirs[token_id] = f"other{token_id}"
    comparison = compare(byte_level(ours), byte_level(theirs))
    assert comparison.num_differing == 7 and comparison.num_equal == 93
    assert [pair.id for pair in comparison.first_differences] == [7, 20, 21, 22, 50]
    first = comparison.first_differences[0]
    assert (first.target, first.draft) == ("w4", "other7")
    assert comparison.overlap == pytest.approx(0.9)  # 97 ordinary tokens, 7 of them others, of 100


def test_padding_is_no_difference() -> None:
    comparison = compare(byte_level(padded(words(100), 128)), byte_level(padded(words(100), 110)))
    assert comparison.same_tokens
    assert (comparison.target.rows, comparison.draft.rows) == (128, 110)
    assert (comparison.target.num_tokens, comparison.draft.num_tokens) == (100, 100)


def test_a_token_past_the_end_of_the_other_is_a_difference() -> None:
    comparison = compare(byte_level([*words(100), "<tool>"]), byte_level(words(100)))
    (pair,) = comparison.first_differences
    assert (pair.id, pair.target, pair.draft) == (100, "<tool>", None)


def test_control_tokens_of_one_side() -> None:
    types = np.array([3] * 4 + [1] * 96)
    comparison = compare(byte_level(words(100)), byte_level(words(100), token_type=types))
    assert [pair.id for pair in comparison.special_differences] == [3] and comparison.same_tokens


def test_a_folder_and_a_gguf_of_one_model_are_the_same(tmp_path: Path) -> None:
    model_files.save_tokenizer(tmp_path)
    model_files.write_gguf(tmp_path / "m.gguf")
    ours, theirs = load_tokenizer(tmp_path), load_tokenizer(tmp_path / "m.gguf")
    comparison = compare(ours, theirs)
    assert same_vocabulary(ours, theirs) and comparison.same_tokens and comparison.same_merges is True
    assert comparison.same_pre_tokenizer is None  # written differently, and cut alike
    assert "vocabulary-splitting" not in ids(check(ours, theirs, "slipstream"))


def test_other_cuts_are_seen() -> None:
    reference = model_files.byte_level_tokenizer()
    by_id = {i: text for text, i in reference.get_vocab().items()}
    tokens = [by_id[i] for i in range(len(by_id))]
    merges = [" ".join(pair) for pair in json.loads(reference.to_str())["model"]["merges"]]
    ours = byte_level(tokens, merges=merges, pre="smollm")
    theirs = byte_level(tokens, merges=merges[:5], pre="smollm")
    assert compare(ours, theirs).same_merges is False and compare(ours, theirs).same_pre_tokenizer is True
    assert "merges" in only(check(ours, theirs, "slipstream"), "vocabulary-splitting").evidence


# --- verdicts


@pytest.mark.parametrize("engine", [folder.name for folder in folders()])
def test_a_pair_that_fits_says_so_and_why(engine: str) -> None:
    (finding,) = check(byte_level(words(1500)), byte_level(words(1500)), engine)
    assert (finding.id, finding.severity) == ("vocabulary-same", "note")
    assert finding.evidence == "all 1,500 tokens have the same ids"


QWEN = {"slipstream": True, "llama.cpp": True, "vllm": False, "sglang": False, "transformers": False, "exllama": True}


@pytest.mark.parametrize(("engine", "accepted"), QWEN.items())
def test_qwen_padding(engine: str, accepted: bool) -> None:
    """Qwen2.5: 151,665 tokens, 152,064 embedding rows in the large models and 151,936 in the small."""
    tokens = words(151_665)
    findings = check(byte_level(tokens), byte_level(tokens), engine, 152_064, 151_936)
    assert blocks(findings) is not accepted
    if accepted:
        evidence = only(findings, "vocabulary-same").evidence
        assert "all 151,665 tokens" in evidence and "152,064" in evidence and "padding" in evidence
    else:
        finding = only(findings, "vocabulary-size")
        assert "152,064" in finding.evidence and "151,936" in finding.evidence and "padding" in finding.cause


def test_the_vllm_fix_names_the_setting() -> None:
    tokens = words(300)
    finding = only(check(byte_level(tokens), byte_level(tokens), "vllm", 384, 320), "vocabulary-size")
    assert '"use_heterogeneous_vocab": true' in finding.fix
    finding = only(check(byte_level(tokens), byte_level(tokens), "transformers", 384, 320), "vocabulary-size")
    assert "assistant_tokenizer" in finding.fix


def test_llama_cpp_allows_128_and_no_more() -> None:
    tokens = words(300)
    assert not blocks(check(byte_level(tokens), byte_level(tokens), "llama.cpp", 428, 300))
    finding = only(check(byte_level(tokens), byte_level(tokens), "llama.cpp", 429, 300), "vocabulary-size")
    assert "129 apart" in finding.evidence and "128" in finding.cause


def test_llama_cpp_reads_tokens_from_id_5_on() -> None:
    ours, early, late = words(300), words(300), words(300)
    early[4] = "other"
    late[5] = "other"
    accepted = check(byte_level(ours), byte_level(early), "llama.cpp")
    assert not blocks(accepted) and "id 4" in only(accepted, "vocabulary-same").evidence
    finding = only(check(byte_level(ours), byte_level(late), "llama.cpp"), "vocabulary-tokens")
    assert "1 ids differ: id 5: target 'w2', draft 'other'" in finding.evidence


def test_llama_cpp_takes_reserved_names_by_the_letter() -> None:
    ours, theirs = words(300), words(300)
    ours[200], theirs[200] = "<|reserved_1|>", "<|extra_1|>"
    assert "vocabulary-tokens" in ids(check(byte_level(ours), byte_level(theirs), "llama.cpp"))
    assert not blocks(check(byte_level(ours), byte_level(theirs), "slipstream"))


def test_llama_cpp_kinds() -> None:
    finding = only(check(spm(["▁a"]), byte_level(words(260)), "llama.cpp"), "vocabulary-type")
    assert "SentencePiece" in finding.evidence and "byte-level" in finding.evidence
    assert "vocab type must match" in finding.cause


@pytest.mark.parametrize(
    ("changes", "severity", "override"),
    [
        ({"add_bos_token": False}, "blocks", "add_bos_token=bool:true"),
        ({"bos_token_id": 2}, "blocks", "bos_token_id=int:0"),
        ({"eos_token_id": 2}, "slows", "eos_token_id=int:1"),  # never added, so current builds don't mind
    ],
)
def test_llama_cpp_ends(changes: dict, severity: str, override: str) -> None:
    tokens = words(300)
    findings = check(byte_level(tokens), byte_level(tokens, **changes), "llama.cpp")
    finding = only(findings, "vocabulary-special")
    assert finding.severity == severity and override in finding.fix
    assert ("vocabulary-same" in ids(findings)) is (severity == "slows")
    note = only(check(byte_level(tokens), byte_level(tokens, **changes), "vllm"), "vocabulary-ends")
    assert note.severity == "note"


def test_llama_cpp_is_not_told_to_use_an_id_that_is_another_token_in_the_draft() -> None:
    ours = byte_level(words(600), eos_token_id=599)
    for tokens in (words(300), [*words(590), *(f"other{i}" for i in range(10))]):
        finding = only(check(ours, byte_level(tokens), "llama.cpp"), "vocabulary-special")
        assert "override-kv" not in finding.fix and "pairs --target" in finding.fix


def test_a_bos_that_nobody_adds_does_not_block_llama_cpp() -> None:
    plain = {"add_bos_token": False}
    ours, theirs = byte_level(words(300), **plain), byte_level(words(300), bos_token_id=2, **plain)
    assert not blocks(check(ours, theirs, "llama.cpp"))


MISTRAL_LIKE = spm([f"▁m{i}" for i in range(2000)])
TINYLLAMA_LIKE = spm([f"▁t{i}" for i in range(2000)])


@pytest.mark.parametrize(
    ("engine", "rule"),
    [
        ("slipstream", "vocabulary-translate"),
        ("llama.cpp", "vocabulary-tokens"),
        ("vllm", "vocabulary-unchecked"),
        ("sglang", "vocabulary-tokens"),
        ("transformers", "vocabulary-unchecked"),
        ("exllama", "vocabulary-unchecked"),
    ],
)
def test_equal_sizes_with_other_strings(engine: str, rule: str) -> None:
    """As TinyLlama beside a Mistral vocabulary: the same number of ids, other texts."""
    findings = check(MISTRAL_LIKE, TINYLLAMA_LIKE, engine)
    finding = only(findings, rule)
    assert "2,000 ids differ: id 259: target '▁m0', draft '▁t0'" in finding.evidence
    assert blocks(findings) is (engine != "slipstream")
    assert "vocabulary-same" not in ids(findings)


def test_slipstream_states_the_measured_overlap() -> None:
    ours = spm([f"▁m{i}" for i in range(1000)])
    half = spm([f"▁m{i}" for i in reversed(range(500))] + [f"▁t{i}" for i in range(500)])
    finding = only(check(ours, half, "slipstream"), "vocabulary-translate")
    assert "60% of the target's tokens" in finding.evidence  # 256 bytes and 500 of 1259
    assert "shared tokens" in finding.cause and "--drafter translate" in finding.fix
    finding = only(check(MISTRAL_LIKE, TINYLLAMA_LIKE, "slipstream"), "vocabulary-translate")
    assert "as text" in finding.cause


def test_exllama_ids_out_of_range() -> None:
    small, large = byte_level(words(300)), byte_level(words(900, prefix="x"))
    for pair in ((small, large), (large, small)):
        findings = check(*pair, "exllama")
        finding = only(findings, "vocabulary-out-of-range")
        assert "highest token id is 899" in finding.evidence and "index out of range" in finding.cause
        assert "vocabulary-unchecked" in ids(findings)
    enough_rows = check(byte_level(words(300)), byte_level([*words(300), "<tool>"]), "exllama", 320, 320)
    assert "vocabulary-out-of-range" not in ids(enough_rows)


def test_a_few_added_tokens_slow_and_do_not_block() -> None:
    ours = byte_level([*words(3000), "<|im_start|>", "<|im_end|>"])
    findings = check(ours, byte_level(words(3000)), "exllama", 3008, 3008)
    finding = only(findings, "vocabulary-few-differ")
    assert finding.severity == "slows" and "<|im_start|>" in finding.evidence and not blocks(findings)


def test_chat_templates() -> None:
    ours, theirs = byte_level(words(300)), byte_level(words(300), template="{{ y }}")
    assert only(check(ours, theirs, "vllm"), "vocabulary-template").severity == "note"
    assert compare(ours, byte_level(words(300), template="")).same_chat_template is None


def test_an_unknown_engine_lists_the_known() -> None:
    with pytest.raises(UsageError, match=r"sglang.*tabbyapi"):
        check(MISTRAL_LIKE, MISTRAL_LIKE, "tgi")
    assert ids(check(MISTRAL_LIKE, MISTRAL_LIKE, "TabbyAPI")) == {"vocabulary-same"}


# --- from files


def test_folders_that_hold_only_a_tokenizer(tmp_path: Path) -> None:
    for name, rows in (("a", 512), ("b", 448)):
        (tmp_path / name).mkdir()
        model_files.save_tokenizer(tmp_path / name)
        (tmp_path / name / "config.json").write_text(json.dumps({"vocab_size": rows}))
    assert ids(check_specs(tmp_path / "a", tmp_path / "b", "llama.cpp")) == {"vocabulary-same"}
    assert "512" in only(check_specs(tmp_path / "a", tmp_path / "b", "vllm"), "vocabulary-size").evidence


def test_a_missing_tokenizer_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    model_files.save_tokenizer(tmp_path)
    finding = only(check_specs(tmp_path, tmp_path / "empty", "vllm"), "vocabulary-unreadable")
    assert finding.severity == "blocks" and "tokenizer.json" in finding.evidence
    assert len(check_specs("nobody/here", tmp_path / "nothing.gguf", "vllm")) == 2
    with pytest.raises(ModelNotFoundError, match="hf download nobody/here"):
        load_tokenizer("nobody/here")


def test_an_ollama_blob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = "sha256-" + "0" * 64
    (tmp_path / "blobs").mkdir()
    model_files.write_gguf(tmp_path / "blobs" / digest)
    manifest = tmp_path / "manifests/registry.ollama.ai/library/tiny/1b"
    manifest.parent.mkdir(parents=True)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": digest.replace("-", ":", 1)}
    manifest.write_text(json.dumps({"layers": [layer]}))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    assert load_tokenizer("ollama:tiny:1b").vocab_size == model_files.byte_level_tokenizer().get_vocab_size()
    assert ids(check_specs("ollama:tiny:1b", tmp_path / "blobs" / digest, "llama.cpp")) == {"vocabulary-same"}


def test_a_hub_id_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = tmp_path / "models--org--tiny/snapshots/abc"
    snapshot.mkdir(parents=True)
    (tmp_path / "models--org--tiny/refs").mkdir()
    (tmp_path / "models--org--tiny/refs/main").write_text("abc")
    model_files.save_tokenizer(snapshot)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert load_tokenizer("org/tiny").vocab_size == model_files.byte_level_tokenizer().get_vocab_size()


def test_an_independent_count_of_the_differences(tmp_path: Path) -> None:
    """Against plain dictionaries from the tokenizers library."""
    ours, theirs = model_files.byte_level_tokenizer(), tokenizers.Tokenizer(tokenizers.models.BPE())
    theirs.pre_tokenizer, theirs.decoder = ours.pre_tokenizer, ours.decoder
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=380, special_tokens=small_models.SPECIALS, show_progress=False, initial_alphabet=list("abcdefgh")
    )
    theirs.train_from_iterator(["other words entirely, " * 50], trainer)
    for name, tokenizer in (("a", ours), ("b", theirs)):
        (tmp_path / name).mkdir()
        tokenizer.save(str(tmp_path / name / "tokenizer.json"))
    by_id = [{i: t for t, i in tokenizer.get_vocab().items()} for tokenizer in (ours, theirs)]
    expected = [i for i in range(max(map(len, by_id))) if by_id[0].get(i) != by_id[1].get(i)]
    comparison = compare(load_tokenizer(tmp_path / "a"), load_tokenizer(tmp_path / "b"))
    assert comparison.num_differing == len(expected) > 0
    assert [pair.id for pair in comparison.first_differences] == expected[:5]


@pytest.mark.real_model
def test_smollm2_with_itself_and_with_another() -> None:
    real = load_tokenizer("smollm2-135m")
    for engine in (folder.name for folder in folders()):
        (finding,) = check(real, load_tokenizer("smollm2-135m"), engine)
        assert finding.evidence == "all 49,152 tokens have the same ids"
    other = byte_level([*words(3), *reversed([t or "" for t in real.token_strings()[3:]])])
    comparison = compare(real, other)
    assert comparison.share_equal < 0.01 and comparison.overlap > 0.99  # the same texts under other ids
