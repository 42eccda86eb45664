from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import model_files
import numpy as np
import pytest
import sentencepiece
import tokenizers
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from model_files import TEMPLATE
from tokenizers import normalizers, pre_tokenizers

import small_models
from slipstream.errors import DamagedModelError, UnsupportedModelError, UsageError
from slipstream.models import open_checkpoint
from slipstream.models.export.tokenizer import save_tokenizer
from slipstream.models.text.tokenizer import StreamDecoder, Tokenizer, same_vocabulary
from slipstream.models.text.tokenizer_gguf import tokenizer_from_metadata
from slipstream.models.text.tokenizer_hf import tokenizer_from_folder
from slipstream.models.text.vocabulary import same_strings

PATH = Path("m.gguf")
TEXTS = [
    *small_models.CORPUS[:3],
    "",
    " ",
    "  leading and trailing  ",
    "\n\n\t x\r\n",
    "12345 and ٣٤٥ and Ⅻ  7",
    "naïve é e\u0301 日本語 한국어 🎉👩‍👩‍👧 \u00a0\u3000\u200b",
    "don't WE'LL I've",
    "<|im_start|>user<|im_end|>",
    "\x00\x01\x7f",
    "a" * 300,
]


def gguf_metadata(tokenizer: tokenizers.Tokenizer, **changes: object) -> dict[str, object]:
    vocabulary = small_models.gguf_vocabulary(tokenizer, tokenizer.get_vocab_size())
    values = {
        **vocabulary,
        "model": "gpt2",
        "pre": "smollm",
        "token_type": np.array(vocabulary["token_type"]),
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    metadata: dict[str, object] = {f"tokenizer.ggml.{key}": value for key, value in (values | changes).items()}
    return metadata | {"tokenizer.chat_template": TEMPLATE}


@pytest.fixture(scope="module")
def reference() -> tokenizers.Tokenizer:
    return model_files.byte_level_tokenizer()


@pytest.fixture(scope="module")
def byte_level(reference: tokenizers.Tokenizer) -> Tokenizer:
    return tokenizer_from_metadata(gguf_metadata(reference), PATH)


# --- byte-level BPE


@pytest.mark.parametrize("text", TEXTS)
def test_byte_level_equals_the_trained_tokenizer(
    byte_level: Tokenizer, reference: tokenizers.Tokenizer, text: str
) -> None:
    assert byte_level.encode(text, special=True) == reference.encode(text).ids
    assert byte_level.decode(byte_level.encode(text)) == text


@settings(max_examples=200)
@given(st.text())
def test_byte_level_round_trip(text: str) -> None:
    tokenizer = _cached_byte_level()
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text and not any(map(tokenizer.is_special, ids))
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


_made: list[Tokenizer] = []


def _cached_byte_level() -> Tokenizer:
    if not _made:
        _made.append(tokenizer_from_metadata(gguf_metadata(model_files.byte_level_tokenizer()), PATH))
    return _made[0]


def test_special_tokens_in_plain_text_are_text(byte_level: Tokenizer) -> None:
    text = "<|im_start|>"
    assert byte_level.encode(text, special=True) == [1]
    plain = byte_level.encode(text)
    assert 1 not in plain and byte_level.decode(plain) == text
    assert byte_level.prompt_ids(text) == plain
    assert (byte_level.decode([1, *plain]), byte_level.decode([1], show_special=True)) == (text, text)
    assert (byte_level.token_bytes(1), byte_level.token_text(1), byte_level.is_special(1)) == (b"", text, True)


def longest_wait(encode: Callable[[], object], do: Callable[[], object]) -> float:
    """The longest time between two calls of `do` in this thread while another one encodes, as a share of all of it."""
    thread, times = threading.Thread(target=encode), [time.perf_counter()]
    thread.start()
    while thread.is_alive():
        do()
        times.append(time.perf_counter())
    return max(after - before for before, after in pairwise(times)) / (times[-1] - times[0])


@pytest.mark.parametrize("message", ["", "<|im_end|>"], ids=["plain", "with a control token"])
def test_other_threads_go_on_while_a_long_text_is_encoded(byte_level: Tokenizer, message: str) -> None:
    text = "".join(small_models.CORPUS[:3]) + message
    chat = [{"role": "user", "content": text * (1_000_000 // len(text))}]
    byte_level.chat_ids([{"role": "user", "content": "Hi" + message}])  # the template's process has started
    assert longest_wait(lambda: byte_level.chat_ids(chat), lambda: time.sleep(0.002)) < 0.4


def test_a_short_text_does_not_wait_for_a_long_one(byte_level: Tokenizer) -> None:
    text = small_models.CORPUS[0]
    long = text * (1_000_000 // len(text))
    expected = {special: byte_level.encode(text, special=special) for special in (True, False)}

    def encode_both() -> None:
        assert {special: byte_level.encode(text, special=special) for special in (True, False)} == expected

    assert longest_wait(lambda: byte_level.encode(long), encode_both) < 0.4


def test_rows_without_a_token_are_silent(byte_level: Tokenizer) -> None:
    assert byte_level.token_bytes(10_000) == b"" and byte_level.token_text(10_000) == ""
    with pytest.raises(ValueError, match="-1"):
        byte_level.token_bytes(-1)


def test_bos_and_end_tokens(reference: tokenizers.Tokenizer) -> None:
    tokenizer = tokenizer_from_metadata(gguf_metadata(reference, add_bos_token=True, eot_token_id=5), PATH)
    assert tokenizer.prompt_ids("a")[0] == 1 == tokenizer.bos_id
    assert tokenizer.eos_ids == {0, 2, 5}  # <|endoftext|> by its name, <|im_end|> as eos, 5 as eot
    llama3 = tokenizer_from_metadata(gguf_metadata(reference, pre="llama-bpe"), PATH)
    assert llama3.add_bos and not tokenizer_from_metadata(gguf_metadata(reference), PATH).add_bos


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"pre": "nonsense-42"}, UnsupportedModelError, "nonsense-42"),
        ({"model": "t5"}, UnsupportedModelError, "t5"),
        ({"merges": ["toolong"]}, DamagedModelError, "toolong"),
        ({"merges": ["never seen"]}, DamagedModelError, "merge"),
        ({"merges": 3}, DamagedModelError, "merges"),
        ({"tokens": None}, DamagedModelError, "tokens"),
        ({"token_type": np.zeros(3)}, DamagedModelError, "token_type"),
        ({"bos_token_id": 4000}, DamagedModelError, "4000"),
    ],
)
def test_refused_metadata(reference: tokenizers.Tokenizer, changes: dict, error: type, says: str) -> None:
    with pytest.raises(error, match=says):
        tokenizer_from_metadata(gguf_metadata(reference, **changes), PATH)


# --- SentencePiece


def spm_gguf(model: bytes) -> Tokenizer:
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    ids = range(processor.get_piece_size())
    kinds = [
        2 if processor.is_unknown(i) else 3 if processor.is_control(i) else 6 if processor.is_byte(i) else 1
        for i in ids
    ]
    kinds[processor.piece_to_id("[TOOL]")] = 4
    metadata = {
        "model": "llama",
        "tokens": [processor.id_to_piece(i) for i in ids],
        "scores": np.array([processor.get_score(i) for i in ids], np.float32),
        "token_type": np.array(kinds),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    return tokenizer_from_metadata({f"tokenizer.ggml.{key}": value for key, value in metadata.items()}, PATH)


def spm_folder(model: bytes, folder: Path) -> Tokenizer:
    (folder / "tokenizer.model").write_bytes(model)
    return tokenizer_from_folder(folder)


@pytest.mark.parametrize("source", ["gguf", "tokenizer.model"])
def test_sentencepiece_equals_its_own_library(spm_model: bytes, tmp_path: Path, source: str) -> None:
    tokenizer = spm_gguf(spm_model) if source == "gguf" else spm_folder(spm_model, tmp_path)
    processor = sentencepiece.SentencePieceProcessor(model_proto=spm_model)
    rng = np.random.default_rng(0)
    alphabet = list("the quick brown fox 0123  \n\téß日🎉▁<>/")
    random_texts = ["".join(rng.choice(alphabet, 30)) for _ in range(300)]
    for text in [t for t in TEXTS if "\0" not in t] + random_texts:
        assert tokenizer.encode(text) == processor.encode(text), text
        if "▁" not in text:  # SentencePiece itself reads it as a space
            assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.prompt_ids("the")[0] == 1 == tokenizer.bos_id
    assert tokenizer.eos_ids == {2} and tokenizer.is_special(0)


def test_sentencepiece_written_as_tokenizer_json(spm_model: bytes, tmp_path: Path) -> None:
    """Slipstream decodes by itself; transformers needs the decoder and the BOS that are written."""
    own = spm_gguf(spm_model)
    save_tokenizer(own, 128, tmp_path)
    again, fast = tokenizer_from_folder(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in [t for t in TEXTS if t]:
        assert again.encode(text) == own.encode(text)
        assert fast(text).input_ids == own.prompt_ids(text)
        assert fast.decode(own.encode(text)) == text == again.decode(own.encode(text))


def test_sentencepiece_tokens(spm_model: bytes) -> None:
    tokenizer = spm_gguf(spm_model)
    tool, newline = (tokenizer.token_strings().index(text) for text in ("[TOOL]", "<0x0A>"))
    assert tokenizer.encode("[TOOL]")[-1] == tool and not tokenizer.is_special(tool)
    assert tokenizer.token_bytes(newline) == b"\n" and tokenizer.token_bytes(tool) == b"[TOOL]"
    assert tokenizer.token_bytes(tokenizer.token_strings().index("▁the")) == b" the"


def test_both_forms_of_one_sentencepiece_model_are_one_vocabulary(spm_model: bytes, tmp_path: Path) -> None:
    a, b = spm_gguf(spm_model), spm_folder(spm_model, tmp_path)
    assert same_vocabulary(a, b) and a.fingerprint() == b.fingerprint()


@pytest.mark.parametrize("cut", [1, 5, 100, 2000])
def test_a_broken_tokenizer_model(spm_model: bytes, tmp_path: Path, cut: int) -> None:
    with pytest.raises((DamagedModelError, UnsupportedModelError)):
        spm_folder(spm_model[:cut], tmp_path)


def test_a_sentencepiece_model_that_rewrites_text_is_refused(tmp_path: Path) -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(small_models.CORPUS), model_writer=model, vocab_size=60, minloglevel=2
    )
    with pytest.raises(UnsupportedModelError, match="plain BPE"):
        spm_folder(model.getvalue(), tmp_path)


# --- streaming


@pytest.mark.parametrize("kind", ["byte_level", "spm"])
@settings(max_examples=100)
@given(data=st.data())
def test_a_stream_equals_decoding_at_once(spm_model: bytes, kind: str, data: st.DataObject) -> None:
    tokenizer = _cached_byte_level() if kind == "byte_level" else spm_gguf(spm_model)
    if data.draw(st.booleans()):
        ids = tokenizer.prompt_ids(data.draw(st.text()))
    else:
        ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3)))
    stream = StreamDecoder(tokenizer)
    parts = [stream.push(token_id) for token_id in ids]
    assert "".join(parts) + stream.flush() == tokenizer.decode(ids)


def test_a_stream_holds_back_half_characters(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("🧭")
    stream = StreamDecoder(byte_level)
    assert len(ids) > 1
    assert [stream.push(i) for i in ids] == [""] * (len(ids) - 1) + ["🧭"] and stream.flush() == ""
    stream.push(ids[0])
    assert stream.flush() == "\ufffd"


# --- chat


def test_chat_ids(byte_level: Tokenizer) -> None:
    messages = [{"role": "user", "content": "Hi <|im_end|>"}]
    text = byte_level.chat_text(messages)
    assert text == "<|im_start|>user\nHi <|im_end|><|im_end|>\n<|im_start|>assistant\n"
    ids = byte_level.chat_ids(messages, special_in_content=True)
    assert ids == byte_level.encode(text, special=True) and ids[0] == 1
    assert byte_level.chat_text(messages, add_generation_prompt=False).endswith("<|im_end|>\n")


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "wizard", "content": "x"}],
        [{"content": "x"}],
        [{"role": "user"}],
        [{"role": "user", "content": 3}],
    ],
)
def test_bad_messages(byte_level: Tokenizer, messages: list) -> None:
    with pytest.raises(UsageError):
        byte_level.chat_ids(messages)


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('Roles must alternate') }}",
        "{% for",
        "{{ messages[7].content.x }}",
        "{{ 1 / 0 }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ undefined_function() }}",
    ],
)
def test_a_template_that_fails_is_a_usage_error(reference: tokenizers.Tokenizer, template: str) -> None:
    metadata = gguf_metadata(reference) | {"tokenizer.chat_template": template}
    with pytest.raises(UsageError, match="--raw"):
        tokenizer_from_metadata(metadata, PATH).chat_ids([{"role": "user", "content": "x"}])


def test_template_helpers(reference: tokenizers.Tokenizer) -> None:
    template = (
        "{{ bos_token }}{{ eos_token }}{{ messages | tojson }}{{ strftime_now('%Y') | length }}{% generation %}g"
        "{% endgeneration %}{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}{{ tools }}"
    )
    tokenizer = tokenizer_from_metadata(gguf_metadata(reference) | {"tokenizer.chat_template": template}, PATH)
    text = tokenizer.chat_text([{"role": "user", "content": "<é>"}])
    assert text == '<|im_start|><|im_end|>[{"role": "user", "content": "<é>"}]4g01None'


def test_a_model_without_a_template_names_raw(reference: tokenizers.Tokenizer) -> None:
    metadata = gguf_metadata(reference) | {"tokenizer.chat_template": ""}
    with pytest.raises(UsageError, match="--raw"):
        tokenizer_from_metadata(metadata, PATH).chat_ids([{"role": "user", "content": "x"}])


# --- Hugging Face folders


def test_a_folder_and_a_gguf_of_one_model_agree(llama_folder: Path, sound_gguf: Path) -> None:
    a, b = tokenizer_from_folder(llama_folder), open_checkpoint(sound_gguf).tokenizer
    assert same_vocabulary(a, b) and a.fingerprint() == b.fingerprint()
    assert (a.bos_id, a.add_bos, a.eos_ids, a.chat_template) == (b.bos_id, b.add_bos, b.eos_ids, b.chat_template)
    assert all(a.token_bytes(i) == b.token_bytes(i) for i in range(400))


def test_what_the_side_files_say(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7]}))
    (folder / "chat_template.jinja").write_text("from the file")
    tokenizer = tokenizer_from_folder(folder)
    assert {0, 2, 7} <= tokenizer.eos_ids and tokenizer.chat_template == "from the file"
    assert not tokenizer.add_bos
    state = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    state.post_processor = tokenizers.processors.TemplateProcessing("<|im_start|> $A", None, [("<|im_start|>", 1)])
    state.save(str(folder / "tokenizer.json"))
    assert tokenizer_from_folder(folder).prompt_ids("a")[0] == 1
    named = {"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]}
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps(named | {"add_bos_token": False}))
    assert tokenizer_from_folder(folder).chat_template == "d" and not tokenizer_from_folder(folder).add_bos


def test_a_sentencepiece_style_tokenizer_json(spm_model: bytes, tmp_path: Path) -> None:
    """As Llama 2's tokenizer.json: no pre-tokenizer, and a decoder that strips the space the normalizer put."""
    own = spm_gguf(spm_model)
    own._encoder.decoder = tokenizers.decoders.Sequence(
        [
            tokenizers.decoders.Replace("▁", " "),
            tokenizers.decoders.ByteFallback(),
            tokenizers.decoders.Fuse(),
            tokenizers.decoders.Strip(" ", 1, 0),
        ]
    )
    own._encoder.save(str(tmp_path / "tokenizer.json"))
    tokenizer = tokenizer_from_folder(tmp_path)
    assert tokenizer.strips_leading_space and same_vocabulary(own, tokenizer)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids == own.encode(text) and tokenizer.decode(ids) == own._encoder.decode(ids) == text


# --- vocabularies


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (["x", "y"], ["x", "y"], True),
        (["x", "y"], ["y", "x"], False),
        (["x", "y"], ["x", "z"], False),
        (["x"], ["x", "[PAD1]", None, "<|padding|>", "<|reserved_special_token_7|>", "<unused3>"], True),
        (["x"], ["x", "<think>"], False),
        (["x", None], ["x", "[PAD1]"], True),
        (["x", None, "y"], ["x", "z", "y"], False),
    ],
)
def test_same_strings(a: list, b: list, same: bool) -> None:
    assert same_strings(a, b) is same_strings(b, a) is same


# --- the real one


@pytest.mark.real_model
def test_smollm2_equals_an_independent_construction() -> None:
    tokenizer = open_checkpoint("smollm2-135m").tokenizer
    strings = tokenizer.token_strings()
    own = tokenizer._encoder
    state = json.loads(own.to_str())["model"]
    reference = tokenizers.Tokenizer(
        tokenizers.models.BPE({t: i for i, t in enumerate(strings) if t}, [tuple(pair) for pair in state["merges"]])
    )
    # As in the model's own tokenizer.json: digits one by one, then GPT-2's rule.
    reference.normalizer = normalizers.Sequence([])
    reference.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    for text in [*TEXTS, Path(__file__).read_text()]:
        ids = tokenizer.encode(text)
        assert ids == reference.encode(text).ids and tokenizer.decode(ids) == text
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.add_bos, tokenizer.eos_ids) == (49152, 1, False, {0, 2})
    assert tokenizer.encode("Hello 2024")[-4:] == [34, 32, 34, 36]


@pytest.mark.real_model
def test_smollm2_chat_equals_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = open_checkpoint("smollm2-135m").tokenizer
    other = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer._encoder, chat_template=tokenizer.chat_template
    )
    for messages in (
        [{"role": "user", "content": "Hi!"}],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "é\n1"}],
    ):
        expected = other.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        assert tokenizer.chat_text(messages) == expected
        assert tokenizer.chat_ids(messages)[-3:] == [1, *tokenizer.encode("assistant\n")][-3:]
