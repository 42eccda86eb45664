"""What would end the process in llama.cpp is refused before it is loaded, with the reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slipstream.backends.llamacpp.options import LlamaCppOptions
from slipstream.backends.llamacpp.trial import refuse_unloadable
from slipstream.errors import UnsupportedModelError
from slipstream.load_checks import check_model
from slipstream.loading import load_model
from slipstream.models.gguf.file import open_gguf_file
from unit.models import model_files

pytest.importorskip("llama_cpp")


def assert_refused(path: Path, because: str) -> None:
    with pytest.raises(UnsupportedModelError, match=because):
        refuse_unloadable(open_gguf_file(path))
    with pytest.raises(UnsupportedModelError, match=because):
        load_model(path, LlamaCppOptions(n_gpu_layers=0, context_length=32))
    [found] = check_model(path, "llamacpp")
    assert found.id == "weights-unsupported"


def test_sizes_that_contradict_each_other(tmp_path):
    path = tmp_path / "m.gguf"
    model_files.write_gguf(path, architecture="qwen2", metadata={"qwen2.rope.dimension_count": 401})
    assert_refused(path, r"it ended the process \(qwen2\.cpp:\d+: GGML_ASSERT\(n_embd_head == n_rot\) failed\)")


@pytest.mark.parametrize("name", ["blk.1.attn_v.bias", "blk.0.attn_norm.weight", "output_norm.weight"])
def test_a_vector_of_another_type_than_float32(tmp_path, name):
    tensors = model_files.gguf_tensors("qwen2", np.random.default_rng(0))
    tensors[name] = tensors[name].astype(np.float16)
    model_files.write_gguf(tmp_path / "m.gguf", architecture="qwen2", tensors=tensors)
    assert_refused(tmp_path / "m.gguf", f"'{name}' of type F16; expected F32")


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_a_sound_model_is_tried_once(tmp_path, architecture, monkeypatch):
    model_files.write_gguf(tmp_path / "m.gguf", architecture=architecture)
    file = open_gguf_file(tmp_path / "m.gguf")
    refuse_unloadable(file)
    monkeypatch.setattr("slipstream.backends.llamacpp.trial._reason", lambda path: "tried again")
    refuse_unloadable(file)


def test_a_context_that_does_not_fit_is_halved_unless_it_was_asked_for(tmp_path, monkeypatch):
    from slipstream.backends.llamacpp import load
    from slipstream.errors import CapacityError

    model_files.write_gguf(tmp_path / "m.gguf", metadata={"llama.context_length": 100_000})
    attempts, real = list[int](), load._try_context

    def refuse_large(lib, model, options, plan, gpu_layers):
        attempts.append(plan.context_length)
        return real(lib, model, options, plan, gpu_layers) if plan.context_length <= 30_000 else None

    monkeypatch.setattr(load, "_try_context", refuse_large)
    loaded = load_model(tmp_path / "m.gguf", LlamaCppOptions(n_gpu_layers=0, max_streams=1))
    assert attempts == [100_000, 50_000, 25_000] and loaded.model.info.context_length == 25_000
    with pytest.raises(CapacityError, match="not enough memory for a context"):
        load_model(tmp_path / "m.gguf", LlamaCppOptions(n_gpu_layers=0, max_streams=1, context_length=50_000))
