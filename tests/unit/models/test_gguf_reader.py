from __future__ import annotations

import struct
from pathlib import Path

import gguf
import model_files
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_files import SIZES, gguf_tensors, interleave, write_gguf

import small_models
from slipstream.errors import DamagedModelError, ModelError, ModelNotFoundError, UnsupportedModelError
from slipstream.models import open_checkpoint
from slipstream.models.gguf.dequantise import to_raw_tensor

KINDS = gguf.GGMLQuantizationType
ROW_KINDS = [KINDS.Q4_0, KINDS.Q4_1, KINDS.Q5_0, KINDS.Q5_1, KINDS.Q8_0, KINDS.F16, KINDS.BF16]


def as_float32(raw: object) -> np.ndarray:
    data = raw.data  # type: ignore[attr-defined]
    if raw.kind == "BF16":  # type: ignore[attr-defined]
        return (data.astype(np.uint32) << 16).view(np.float32)
    return data.astype(np.float32)


@pytest.mark.parametrize("kind", ROW_KINDS, ids=lambda kind: kind.name)
def test_a_quantised_tensor_reads_as_gguf_dequantises_it(tmp_path: Path, kind: KINDS) -> None:
    written = write_gguf(tmp_path / "m.gguf", quantisation=kind)
    raw = open_checkpoint(tmp_path / "m.gguf").tensor("model.layers.1.mlp.down_proj.weight")
    stored = gguf.quants.quantize(written["blk.1.ffn_down.weight"], kind)
    np.testing.assert_array_equal(as_float32(raw), gguf.quants.dequantize(stored, kind))
    assert raw.kind == {KINDS.F16: "F16", KINDS.BF16: "BF16"}.get(kind, "F32")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # random bytes hold infinities, also in the threads
def test_every_type_gguf_can_dequantise_gives_the_same_floats_in_chunks() -> None:
    rng = np.random.default_rng(1)
    for kind in gguf.quants._type_traits:
        block_elements, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        num_blocks = 3 * (1 << 18) // block_elements + 5  # several chunks and an odd rest
        rows = rng.integers(0, 256, (1, num_blocks * block_bytes), dtype=np.uint8)
        expected = gguf.quants.dequantize(rows.reshape(-1, block_bytes), kind).reshape(1, -1)
        raw = to_raw_tensor(rows, (1, num_blocks * block_elements), int(kind))
        np.testing.assert_array_equal(as_float32(raw), expected, err_msg=kind.name)


def test_llama_rotary_rows_are_put_back_in_half_split_order(tmp_path: Path) -> None:
    hf = gguf_tensors("llama", np.random.default_rng(2))
    heads = {"attn_q": SIZES["num_attention_heads"], "attn_k": SIZES["num_key_value_heads"]}
    stored = {n: interleave(v, heads[n.split(".")[-2]]) if n.split(".")[-2] in heads else v for n, v in hf.items()}
    write_gguf(tmp_path / "m.gguf", tensors=stored, quantisation=KINDS.F16)
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    for part, name in [
        ("attn_q", "q_proj"),
        ("attn_k", "k_proj"),
        ("attn_v", "v_proj"),
        ("attn_output", "o_proj"),
    ]:
        raw = checkpoint.tensor(f"model.layers.1.self_attn.{name}.weight")
        np.testing.assert_array_equal(raw.data, hf[f"blk.1.{part}.weight"].astype(np.float16))


def test_llama_biases_are_put_back_too(tmp_path: Path) -> None:
    hf = gguf_tensors("qwen2", np.random.default_rng(3))
    stored = {
        n: interleave(v, 4) if "attn_q." in n else interleave(v, 2) if "attn_k." in n else v for n, v in hf.items()
    }
    write_gguf(tmp_path / "m.gguf", tensors=stored)
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    assert checkpoint.config.qkv_bias
    np.testing.assert_array_equal(
        checkpoint.tensor("model.layers.0.self_attn.q_proj.bias").data, hf["blk.0.attn_q.bias"]
    )
    np.testing.assert_array_equal(
        checkpoint.tensor("model.layers.0.self_attn.k_proj.bias").data, hf["blk.0.attn_k.bias"]
    )


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3"])
def test_qwen_rows_stay_as_they_are(tmp_path: Path, architecture: str) -> None:
    written = write_gguf(tmp_path / "m.gguf", architecture=architecture)
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    assert (checkpoint.config.qkv_bias, checkpoint.config.qk_norm) == (
        architecture == "qwen2",
        architecture == "qwen3",
    )
    np.testing.assert_array_equal(
        checkpoint.tensor("model.layers.0.self_attn.q_proj.weight").data, written["blk.0.attn_q.weight"]
    )


def test_config_of_a_plain_file(sound_gguf: Path) -> None:
    checkpoint = open_checkpoint(sound_gguf)
    config = checkpoint.config
    assert (config.architecture, config.vocab_size, config.hidden_size, config.head_dim) == (
        "llama",
        400,
        64,
        16,
    )
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.context_length) == (2, 4, 2, 128)
    assert config.tied_head and config.rope_divisors is None and config.sliding_window is None
    assert checkpoint.name == "tiny" and "lm_head.weight" not in checkpoint
    assert checkpoint.weight_bytes() == sum(v.nbytes for v in gguf_tensors("llama", np.random.default_rng(0)).values())


def test_a_head_of_its_own_and_the_optional_keys(tmp_path: Path) -> None:
    tensors = gguf_tensors("llama", np.random.default_rng(0), tied=False)
    tensors["rope_freqs.weight"] = np.linspace(1, 8, 8).astype(np.float32)
    keys = {
        "llama.attention.sliding_window": 32,
        "llama.rope.scaling.type": "linear",
        "llama.rope.scaling.factor": 2.0,
    }
    write_gguf(tmp_path / "m.gguf", tensors=tensors, metadata=keys)
    config = open_checkpoint(tmp_path / "m.gguf").config
    assert not config.tied_head and config.sliding_window == 32
    assert config.rope_divisors == pytest.approx([2, 4, 6, 8, 10, 12, 14, 16])


@pytest.mark.parametrize(
    ("metadata", "error", "says"),
    [
        ({"general.architecture": "gemma3"}, UnsupportedModelError, "gemma3"),
        ({"llama.rope.scaling.type": "yarn"}, UnsupportedModelError, "yarn"),
        ({"llama.rope.dimension_count": 8}, UnsupportedModelError, "8 rotary, 16 key"),
        ({"llama.expert_count": 8}, UnsupportedModelError, "experts"),
        ({"split.count": 3}, UnsupportedModelError, "llama-gguf-split --merge"),
        ({"llama.attention.head_count_kv": [2, 1]}, UnsupportedModelError, "head_count_kv"),
        ({"llama.block_count": 3}, DamagedModelError, "model.layers.2"),
        ({"llama.block_count": 4_000_000_000}, DamagedModelError, "layers"),
        ({"llama.block_count": None}, DamagedModelError, "block_count"),
        ({"llama.attention.head_count": 0}, DamagedModelError, "heads"),
        ({"llama.attention.head_count": 3}, DamagedModelError, ""),
        ({"llama.feed_forward_length": 97}, DamagedModelError, "97"),
        ({"llama.rope.freq_base": float("nan")}, DamagedModelError, "theta"),
    ],
)
def test_metadata_that_is_refused(tmp_path: Path, metadata: dict, error: type, says: str) -> None:
    if "general.architecture" in metadata:
        write_gguf(tmp_path / "m.gguf", architecture=metadata["general.architecture"])
    else:
        rotary = {"llama.rope.dimension_count": None} if metadata == {"llama.attention.head_count": 3} else {}
        write_gguf(tmp_path / "m.gguf", metadata=rotary | metadata)
    with pytest.raises((error, UnsupportedModelError) if not says else error) as caught:
        open_checkpoint(tmp_path / "m.gguf")
    assert says in str(caught.value) and "m.gguf" in str(caught.value) and "\n" not in str(caught.value)


def test_a_tensor_without_a_place_is_refused(tmp_path: Path) -> None:
    tensors = gguf_tensors("llama", np.random.default_rng(0))
    tensors["blk.0.attn_output.bias"] = np.zeros(64, np.float32)
    write_gguf(tmp_path / "m.gguf", tensors=tensors)
    with pytest.raises(UnsupportedModelError, match=r"o_proj\.bias"):
        open_checkpoint(tmp_path / "m.gguf")


def test_a_type_that_can_not_be_dequantised_is_named(tmp_path: Path) -> None:
    tensors = gguf_tensors("llama", np.random.default_rng(0))
    tensors["blk.0.attn_norm.weight"] = np.zeros(64, np.int8)
    write_gguf(tmp_path / "m.gguf", tensors=tensors)
    with pytest.raises(UnsupportedModelError, match="I8"):
        open_checkpoint(tmp_path / "m.gguf")


def broken(data: bytes) -> dict[str, tuple[bytes, type[ModelError], str]]:
    counts = data[:8]
    huge = struct.pack("<Q", 1 << 60)
    return {
        "empty": (b"", DamagedModelError, "empty"),
        "pointer": (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:00",
            DamagedModelError,
            "git lfs pull",
        ),
        "magic": (b"PK\x03\x04" + data[4:], DamagedModelError, "not a GGUF"),
        "only the magic": (data[:4], DamagedModelError, "ends inside"),
        "version 1": (data[:4] + struct.pack("<I", 1) + data[8:], UnsupportedModelError, "version 1"),
        "big endian": (data[:4] + struct.pack(">I", 3) + data[8:], UnsupportedModelError, "big-endian"),
        "many tensors": (counts + huge + data[16:], DamagedModelError, "more than fit in the file"),
        "many pairs": (data[:16] + huge + data[24:], DamagedModelError, "more than fit in the file"),
        "long key": (data[:24] + huge + data[32:], DamagedModelError, "more than fit in the file"),
        "cut in the header": (data[:3000], DamagedModelError, ""),
        "cut in the data": (data[:-5000], DamagedModelError, "truncated"),
        "zeros": (bytes(5000), DamagedModelError, "not a GGUF"),
        "text": (b"<html>404 not found</html>", DamagedModelError, "not a GGUF"),
    }


@pytest.mark.parametrize("flaw", list(broken(b"0" * 9000)))
def test_a_broken_file_gives_one_clear_line(sound_gguf: Path, tmp_path: Path, flaw: str) -> None:
    data, error, says = broken(sound_gguf.read_bytes())[flaw]
    (tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises(error) as caught:
        open_checkpoint(tmp_path / "m.gguf")
    assert says in str(caught.value) and "m.gguf" in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_file_is_named_with_its_neighbours(sound_gguf: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"tini\.gguf.*Similar names: tiny\.gguf"):
        open_checkpoint(sound_gguf.with_name("tini.gguf"))


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_bytes_and_cuts_never_surprise(sound_gguf: Path, tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(sound_gguf.read_bytes())
    header_end = len(content) // 4
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, header_end))] = data.draw(st.integers(0, 255))
    del content[data.draw(st.sampled_from([len(content), len(content) - 1, header_end, 100])) :]
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    try:
        checkpoint = open_checkpoint(path)
        checkpoint.tensor("model.norm.weight")
        checkpoint.tokenizer.encode("Hello world 1")
    except ModelError:
        pass


def test_the_tokenizer_of_a_file(sound_gguf: Path) -> None:
    tokenizer = open_checkpoint(sound_gguf).tokenizer
    reference = model_files.byte_level_tokenizer()
    for text in small_models.CORPUS[:3]:
        assert tokenizer.encode(text) == reference.encode(text).ids
    assert tokenizer.vocab_size == reference.get_vocab_size() < 400
