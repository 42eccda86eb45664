"""Engine configurations: sound ones pass without a word, each mistake is named with what to write instead."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_tables import TABLES
from slipstream.diagnosis.configs import guess_engine, lint
from slipstream.errors import UsageError

STORY_SCRIPT = """#!/bin/bash
SPEC_CONFIG='{"method": "draft_model", "model": "JackFram/llama-160m", "num_speculative_tokens": 5}'

python -m vllm.entrypoints.openai.api_server \\
  --model TheBloke/Llama-2-7B-AWQ \\
  --dtype half \\
  --max-model-len 2048 \\
  --max-num-seqs 8 \\
  --gpu-memory-utilization 0.90 \\
  --quantization awq \\
  --enforce-eager \\
  --port 8000 \\
  --speculative-config "$SPEC_CONFIG"
"""
STORY_NGRAM = '{"method": "ngram", "prompt_lookup_max": 8, "prompt_lookup_min": 1, "num_speculative_tokens": 5}'
STORY_TABBY = """draft:
  draft_model_dir: /mnt/models
  draft_model_name: TinyLlama-1.1B-Chat-v1.0-exl2-4.0bpw
  # Number of tokens to speculate
  draft_rope_scale: 1
  draft_rope_alpha: 1
"""
TABBY = """network:
  host: 127.0.0.1
  port: 5000
model:
  model_dir: models
  model_name: Midnight-Miqu-70B
  cache_mode: Q4
  cache_size: 16384
  max_seq_len: 16384
  rope_alpha:
draft_model:
  draft_model_dir: models
  draft_model_name: Mistral-draft
  draft_rope_alpha: 2.5
  draft_cache_mode: Q6
  draft_gpu_split: []
"""

SOUND = [
    ("vllm", STORY_SCRIPT),
    ("vllm", STORY_NGRAM),
    ("vllm", f"vllm serve meta-llama/Llama-3.1-8B --speculative-config '{STORY_NGRAM}' --max-model-len 16k -tp 2"),
    ("vllm", f"docker run --gpus all vllm/vllm-openai:latest --model m --speculative_config='{STORY_NGRAM}'"),
    ("vllm", "vllm serve m --speculative-config.method ngram --speculative-config.num_speculative_tokens 4"),
    ("vllm", "vllm serve m --spec-method eagle3 --spec-model org/head --spec-tokens 3 --no-enable-prefix-caching"),
    ("vllm", '{"method": "mtp", "num_speculative_tokens": 1}'),
    ("vllm", '{"method": "suffix"}'),
    (
        "vllm",
        '{"method": "draft_model", "model": "d", "num_speculative_tokens": 5, "use_heterogeneous_vocab": true,'
        ' "num_speculative_tokens_per_batch_size": [[1, 8, 5], [9, 64, 2]], "draft_tensor_parallel_size": 1}',
    ),
    (
        "llama-server",
        "llama-server -m a.gguf -md b.gguf --spec-type draft-simple --spec-draft-n-max 8 -ngl 99 -ngld all",
    ),
    ("llama-server", "./llama-server -hf user/repo:Q4_K_M --spec-type ngram-mod,ngram-simple -c 8192 -fa on -ctv q8_0"),
    ("llama-server", "llama-server -m a.gguf --draft-p-min 0.75 -md b.gguf --spec-type draft-simple -ctkd q8_0"),
    ("llama-server", "llama-server -m a.gguf --temp 0 -n -1 --override-kv a.b=int:4 > server.log 2>&1"),
    ("tabbyapi", TABBY),
    ("tabbyapi", "model:\n  model_name: m\ndraft_model:\n  draft_mode: ngram\n  ngram_match_min: 3\n"),
    ("tabbyapi", "model:\n  model_name: m\ndraft_model:\n  draft_model_dir: models\n  draft_model_name:\n"),
    (
        "sglang",
        "python3 -m sglang.launch_server --model-path m --speculative-algo EAGLE3 --speculative-draft-model-path d "
        "--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 16 --tp 2",
    ),
    ("sglang", "sglang serve --model m --speculative-algorithm NEXTN"),
    ("sglang", "sglang serve --model m --speculative-algorithm ngram --speculative-num-draft-tokens 12"),
    (
        "ollama",
        "FROM ./target.gguf\n# a draft\nDRAFT ./draft.gguf\nPARAMETER draft_num_predict 4\nSYSTEM "
        '"""two\nPARAMETR\n"""\nPARAMETER stop "<|eot_id|>"\nparameter temperature 0.2\nMESSAGE user hi\n',
    ),
    *((engine, "") for engine in TABLES),
]


@pytest.mark.parametrize(("engine", "text"), SOUND)
def test_a_sound_configuration_gives_no_finding(engine, text):
    assert lint(engine, text) == []


def spec(**changes):
    """The speculative JSON of a working draft model, with changes; None takes a key out."""
    base = {"method": "draft_model", "model": "d", "num_speculative_tokens": 5} | changes
    return json.dumps({key: value for key, value in base.items() if value is not None})


FAULTY = [
    # vLLM: the JSON
    ("vllm", spec(num_speculative_token=3), ["config-unknown-key"], "num_speculative_tokens?"),
    ("vllm", spec(disable_by_batch_size=8), ["config-removed"], "num_speculative_tokens_per_batch_size"),
    ("vllm", spec(tensor_parallel_size=2), ["config-removed"], "draft_tensor_parallel_size"),
    ("vllm", spec(method="ngramm", model=None), ["config-choice"], "Did you mean ngram?"),
    ("vllm", spec(num_speculative_tokens=0), ["config-range"], "1 or more"),
    ("vllm", spec(num_speculative_tokens="five"), ["config-type"], "a whole number"),
    ("vllm", spec(num_speculative_tokens=2.5), ["config-type"], "a whole number"),
    ("vllm", spec(num_speculative_tokens=None), ["config-missing"], "num_speculative_tokens"),
    ("vllm", spec(model=None), ["config-missing"], '"model"'),
    ("vllm", spec(method=None, model=None), ["config-missing"], '"method": "ngram"'),
    ("vllm", spec(method="ngram"), ["config-conflict"], 'Remove "model"'),
    ("vllm", spec(method="ngram", model=None, prompt_lookup_min=9, prompt_lookup_max=3), ["config-order"], "Lower"),
    ("vllm", spec(prompt_lookup_max=3), ["config-no-effect"], '"method": "ngram"'),
    ("vllm", spec(method="eagle3", use_heterogeneous_vocab=True), ["config-conflict"], "use_heterogeneous_vocab"),
    (
        "vllm",
        spec(use_heterogeneous_vocab=True, draft_sample_method="probabilistic"),
        ["config-conflict"],
        '"draft_sample_method": "greedy"',
    ),
    ("vllm", spec(num_speculative_tokens_per_batch_size=[[1, 8]]), ["config-type"], "a list of [first"),
    (
        "vllm",
        spec(num_speculative_tokens_per_batch_size=[[1, 8, 5], [4, 9, 2]]),
        ["config-conflict"],
        "increasing ranges",
    ),
    ("vllm", spec(dtype="bfloat16"), ["config-draft-dtype"], "--dtype half"),
    ("vllm", spec(quantization="awqq"), ["config-choice"], "Did you mean awq?"),
    ("vllm", spec(suffix_decoding_min_token_prob=2), ["config-range", "config-no-effect"], "0 to 1"),
    ("vllm", "[1, 2]".replace("[", '{"method":', 1), ["config-syntax"], "line 1 column"),
    # vLLM: command lines
    ("vllm", "vllm serve m --speculative-model d", ["config-removed"], "--speculative-config"),
    ("vllm", "vllm serve m --num-speculative-tokens 5", ["config-removed"], "--speculative-config"),
    ("vllm", "vllm serve m --ngram_prompt_lookup_max 4", ["config-removed"], "prompt_lookup_max"),
    ("vllm", "vllm serve m --max-num-seq 8", ["config-unknown-key"], "--max-num-seqs"),
    ("vllm", "vllm serve m --gpu-memory-utilization 90", ["config-range"], "to 1"),
    ("vllm", "vllm serve m --tensor-parallel-size two", ["config-type"], "a whole number"),
    ("vllm", "vllm serve m --port --enforce-eager", ["config-type"], "a whole number"),
    ("vllm", "vllm serve m --quantization awq --dtype bfloat16", ["config-quant-dtype"], "--dtype half"),
    (
        "vllm",
        f"vllm serve m -tp 4 -sc '{spec(draft_tensor_parallel_size=2)}'",
        ["config-conflict"],
        "to 1 or 4",
    ),
    ("vllm", f"vllm serve m --spec-tokens 3 -sc '{spec()}'", ["config-conflict"], "Keep one"),
    ("vllm", f"vllm serve m --speculative-config {spec()}", ["config-shell-quotes"], "single quotes"),
    ("vllm", 'vllm serve m -sc {"method":"ngram","num_speculative_tokens":5}', ["config-shell-quotes"], "single"),
    ("vllm", 'vllm serve m -sc "{"method": "ngram"}"', ["config-shell-quotes"], "single quotes"),
    ("vllm", "vllm serve m -sc \"{'method': 'ngram'}\"", ["config-shell-quotes"], "double quotes inside"),
    ("vllm", STORY_SCRIPT.replace('"$SPEC_CONFIG"', "$SPEC_CONFIG"), ["config-shell-quotes"], '"$SPEC"'),
    ("vllm", 'vllm serve m -sc \'{"method": "ngram"', ["config-syntax"], "line 1 column 18"),
    # llama-server
    (
        "llama-server",
        "llama-server -m a --spec-type ngram-mod --draft-max 64",
        ["config-removed"],
        "--spec-ngram-mod-n-max",
    ),
    ("llama-server", "llama-server -m a --draft-min 4", ["config-removed"], "--spec-draft-n-min"),
    ("llama-server", "llama-server -m a --no-mmap", ["config-removed"], "--load-mode"),
    ("llama-server", "llama-server -m a -md b", ["config-speculation-off"], "--spec-type draft-simple"),
    ("llama-server", "llama-server -m a --spec-type draft-simple", ["config-missing"], "-md DRAFT.gguf"),
    ("llama-server", "llama-server -m a -md b --spec-type ngram-mod", ["config-no-effect"], "draft-simple"),
    (
        "llama-server",
        "llama-server -m a --spec-type draft-simpel -md b",
        ["config-choice", "config-no-effect"],
        "draft-simple?",
    ),
    ("llama-server", "llama-server -m a --spec-draft-n-max 8", ["config-no-effect"], "-md"),
    (
        "llama-server",
        "llama-server -m a -md b --spec-type draft-simple --spec-draft-n-min 5",
        ["config-order"],
        "--spec-draft-n-max",
    ),
    (
        "llama-server",
        "llama-server -m a -md b --spec-type draft-simple --spec-draft-p-min 75",
        ["config-range"],
        "0 to 1",
    ),
    ("llama-server", "llama-server -m a -md b --spec-type draft-simple -ngld 0", ["config-no-effect"], "-ngld all"),
    ("llama-server", "llama-server -m a -md b --spec-type draft-simple -ctkd q8", ["config-choice"], "q8_0"),
    ("llama-server", "llama-server -m a -ctv q4_0 -fa off", ["config-conflict"], "-fa on"),
    ("llama-server", "llama-server -m a --spec-draft-nmax 8", ["config-unknown-key"], "--spec-draft-n-max"),
    # TabbyAPI
    ("tabbyapi", STORY_TABBY, ["config-section", "config-exl2"], "`draft_model:`"),
    ("tabbyapi", "modle:\n  model_name: m\n", ["config-section"], "`model:`"),
    (
        "tabbyapi",
        "draft_model:\n  draft_model_nam: x\n",
        ["config-unknown-key", "config-speculation-off"],
        "draft_model_name?",
    ),
    ("tabbyapi", "draft_model:\n  draft_cache_mode: Q4\n", ["config-speculation-off"], "draft_model_name"),
    (
        "tabbyapi",
        "draft_model:\n  draft_model_name: x\n  draft_cache_mode: Q5\n",
        ["config-choice"],
        "FP16, Q8, Q6, Q4",
    ),
    ("tabbyapi", "model:\n  model_name: m\n  ngram_decoding: true\n", ["config-removed"], "draft_mode: ngram"),
    ("tabbyapi", "model:\n  cache_mode: q4\n", ["config-choice"], "Did you mean Q4?"),
    ("tabbyapi", "model:\n  cache_size: 1000\n", ["config-range"], "multiple of 256"),
    ("tabbyapi", "model:\n  draft_gpu_split: [1]\n", ["config-unknown-key"], "`draft_model:`"),
    ("tabbyapi", "model:\n  vision: maybe\n", ["config-type"], "true or false"),
    ("tabbyapi", "model:\n\tmodel_name: m\n", ["config-syntax"], "line 2 column 1"),
    ("tabbyapi", "model: m\n", ["config-type"], "indented"),
    ("tabbyapi", "just words", ["config-syntax"], "model:"),
    (
        "tabbyapi",
        "model:\n  backend: exllamav2\ndraft_model:\n  draft_mode: ngram\n  ngram_match_min: 2\n",
        ["config-choice"],
        "exllamav3",
    ),
    # SGLang
    ("sglang", "sglang serve --model m --speculative-draft-model-path d", ["config-speculation-off"], "STANDALONE"),
    ("sglang", "sglang serve --model m --speculative-algorithm EAGLE4", ["config-choice"], "EAGLE"),
    (
        "sglang",
        "sglang serve --model m --speculative-algorithm EAGLE3",
        ["config-missing"],
        "--speculative-draft-model-path",
    ),
    (
        "sglang",
        "sglang serve --model m --speculative-algorithm NGRAM --speculative-draft-model-path d",
        ["config-conflict"],
        "STANDALONE",
    ),
    (
        "sglang",
        "sglang serve --model m --speculative-algorithm NEXTN --speculative-eagle-topk 2",
        ["config-missing"],
        "--speculative-num-steps",
    ),
    (
        "sglang",
        "sglang serve --model m --speculative-algorithm NEXTN --speculative-num-steps 2 --speculative-eagle-topk 2 "
        "--speculative-num-draft-tokens 8",
        ["config-tree-size"],
        "at most 7",
    ),
    (
        "sglang",
        "sglang serve --model m --speculative-algorithm NEXTN --speculative-num-steps 3 --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens 8",
        ["config-no-effect"],
        "--speculative-num-draft-tokens 4",
    ),
    (
        "sglang",
        "sglang serve --model m --speculative-algorithm STANDALONE --speculative-draft-model d "
        "--speculative-use-rejection-sampling",
        ["config-conflict"],
        "--speculative-use-rejection-sampling",
    ),
    ("sglang", "sglang serve --model m --speculative-ngram-branch-length 18", ["config-removed"], "max-trie-depth"),
    ("sglang", "sglang serve --model m --disable-cuda-graph", ["config-deprecated"], "--cuda-graph-backend-decode"),
    ("sglang", "sglang serve --model m --speculative-num", ["config-unknown-key"], "--speculative-num"),
    # Ollama
    ("ollama", "PARAMETER num_ctx 4096\n", ["config-missing"], "FROM"),
    ("ollama", "FROM a\nPARAMETER num_ctxx 4096\n", ["config-unknown-key"], "num_ctx?"),
    ("ollama", "FROM a\nPARAMETERS num_ctx 4096\n", ["config-unknown-key"], "PARAMETER?"),
    ("ollama", "FROM a\nPARAMETER num_ctx lots\n", ["config-type"], "a whole number"),
    ("ollama", "FROM a\nPARAMETER top_p 95\n", ["config-range"], "0 to 1"),
    ("ollama", "FROM a\nPARAMETER mirostat 1\n", ["config-deprecated"], "remove it"),
    ("ollama", "FROM a\nDRAFT llama3.2:1b\n", ["config-draft-path"], "DRAFT ./draft.gguf"),
    ("ollama", "FROM ./a.gguf\nDRAFT ./a.gguf\n", ["config-conflict"], "smaller"),
    ("ollama", "FROM a\nDRAFT ./b.gguf\nPARAMETER draft_num_predict 0\n", ["config-speculation-off"], "4"),
    ("ollama", "FROM a\nPARAMETER draft_num_predict 4\n", ["config-no-effect"], "a file of MTP layers"),
    ("ollama", 'FROM a\nSYSTEM """never closed\n', ["config-syntax"], "line 2"),
    ("ollama", "FROM a\nMESSAGE robot hi\n", ["config-choice"], "system, user, assistant"),
]


@pytest.mark.parametrize(("engine", "text", "ids", "told"), FAULTY)
def test_a_mistake_is_named_and_what_to_write_instead(engine, text, ids, told):
    findings = lint(engine, text)
    assert [finding.id for finding in findings] == ids
    assert told in findings[0].fix + findings[0].cause
    assert all(
        finding.evidence and "{" not in finding.fix.replace("'{", "").replace("{decode", "") for finding in findings
    )


def test_severity_tells_a_refusal_from_a_silent_loss():
    assert lint("vllm", "vllm serve m --speculative-model d")[0].severity == "blocks"
    assert lint("tabbyapi", STORY_TABBY)[0].severity == "slows"
    assert lint("vllm", spec(num_speculative_tokens="5"))[0].severity == "note", "vLLM converts it"
    assert lint("vllm", spec(method=None))[0].id == "config-method-implied"
    assert lint("vllm", spec(method="deepseek_mtp", model=None))[0].severity == "note"


def test_evidence_has_the_line_and_the_value_cut_short():
    [finding] = lint("llama-server", "# start\nllama-server -m a \\\n  --draft-max " + "9" * 500)
    assert finding.evidence.startswith("line 3: --draft-max 999")
    assert len(finding.evidence) < 220


def test_every_removed_name_has_a_successor_that_is_known():
    for tables in TABLES.values():
        for table in tables:
            for gone in table.gone:
                assert not table.knows(gone.name), gone.name
                flags = [word.strip(",()") for word in gone.successor.split() if word.startswith("--")]
                assert all(table.knows(flag) or "*" in flag for flag in flags), gone


def test_tables_say_which_version_they_are_from():
    assert all(table.version and table.source for tables in TABLES.values() for table in tables)
    [speculative] = [table for table in TABLES["vllm"] if table.flag("num_speculative_tokens")]
    assert speculative.flag("num_speculative_tokens").at_least == 1


@pytest.mark.parametrize(
    ("text", "file_name", "engine"),
    [
        (STORY_SCRIPT, "start_vllm_speculative.sh", "vllm"),
        (STORY_NGRAM, "spec.json", "vllm"),
        ('{"method": "ngram", ', "", "vllm"),
        (STORY_TABBY, "config.yml", "tabbyapi"),
        (TABBY, "", "tabbyapi"),
        ("FROM llama3.2\nPARAMETER num_ctx 4096", "", "ollama"),
        ("# empty", "Modelfile", "ollama"),
        ("FROM python:3.12\nRUN pip install vllm\n", "Dockerfile", None),
        ("llama-server -m a.gguf -md b.gguf", "", "llama-server"),
        ("-m a.gguf -md b.gguf --draft-max 16", "", "llama-server"),
        ("--speculative-algorithm EAGLE --mem-fraction-static 0.8", "", "sglang"),
        ("python -m sglang.launch_server --model-path m", "", "sglang"),
        ("docker run lmsysorg/sglang:latest python3 -m sglang.launch_server --model-path m", "", "sglang"),
        ('{"name": "left-pad"}', "package.json", None),
        ("hello world", "notes.txt", None),
        ("", "", None),
    ],
)
def test_the_engine_is_guessed_from_the_text_or_the_name(text, file_name, engine):
    assert guess_engine(text, file_name) == engine


def test_a_file_of_another_engine_is_not_called_fine():
    [finding] = lint("llama-server", TABBY)
    assert (finding.id, finding.severity) == ("config-not-recognised", "unknown")
    assert "--engine tabbyapi" in finding.fix
    assert [finding.id for finding in lint("vllm", "hello world")] == ["config-not-recognised"]


def test_an_unknown_engine_is_refused_with_the_known_ones():
    with pytest.raises(UsageError, match="tabbyapi"):
        lint("tgi", "x")


@settings(max_examples=150)
@given(
    st.sampled_from(sorted(TABLES)),
    st.text(alphabet="{}[]\"'$\\\n\t:=-,.# abdefmprstv015", max_size=60).map(lambda text: f"vllm serve -sc {text}"),
)
def test_no_text_makes_it_fail(engine, text):
    lint(engine, text)
    lint(engine, text.removeprefix("vllm serve -sc "))
    guess_engine(text, "")


def test_deep_nesting_is_a_finding():
    assert [finding.id for finding in lint("vllm", '{"a":' * 100_000)] == ["config-syntax"]
