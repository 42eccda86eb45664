"""llama.cpp: facts."""

from __future__ import annotations

from collections.abc import Iterator

from slipstream.engines.container_image import EngineImage
from slipstream.engines.facts import EngineFacts
from slipstream.findings import Finding
from slipstream.predict.memory import MB, EngineMemory
from slipstream.vocabularies.comparison import Pair
from slipstream.vocabularies.notes import named
from slipstream.vocabularies.rules import SPECIAL, TOKENS, TYPE, differences, exact_differences, listed, unequal_sizes

MAX_SIZE_DIFFERENCE = 128
FIRST_CHECKED_ID = 5
_FOR_BOTH = "Set the target's value for both models: "
_OTHER_DRAFT = (
    "Use a draft model of the target's family (`slipstream pairs --target TARGET`): the target's token is not in the "
    "draft under this id."
)


def check_vocabulary(pair: Pair) -> Iterator[Finding]:
    ours, theirs = pair.comparison.target, pair.comparison.draft
    if ours.spelling != theirs.spelling:
        kinds = {"byte_level": "byte-level BPE (gpt2)", "spm": "SentencePiece (llama)"}
        yield TYPE.finding(f"target {kinds[ours.spelling]}, draft {kinds[theirs.spelling]}; {differences(pair)}")
        return
    yield from _check_ends(pair)
    difference = abs(pair.target_rows - pair.draft_rows)
    if difference > MAX_SIZE_DIFFERENCE:
        limit = f"and allows a difference of at most {MAX_SIZE_DIFFERENCE}"
        fix = (
            "Use a draft model of the target's family (`slipstream pairs --target TARGET`), or run the pair with "
            "Slipstream."
        )
        yield unequal_sizes(pair, "llama.cpp", limit, fix, apart=f": {difference:,} apart")
        return
    differing = list(exact_differences(pair, FIRST_CHECKED_ID))
    if differing:
        yield TOKENS.finding(
            listed(differing),
            engine="llama.cpp",
            alternative=", or run the pair with Slipstream's `--drafter translate`",
        )


def _check_ends(pair: Pair) -> Iterator[Finding]:
    """llama.cpp compares an id only if the token is added to texts; older builds always compare the ids."""
    ours, theirs = pair.comparison.target, pair.comparison.draft
    if ours.add_bos != theirs.add_bos:
        override = f"--override-kv tokenizer.ggml.add_bos_token=bool:{str(ours.add_bos).lower()}"
        evidence = f"BOS added to texts: target {ours.add_bos}, draft {theirs.add_bos}"
        meaning = "Only one of them adds BOS, so the pair is refused."
        yield SPECIAL.finding(evidence, meaning=meaning, fix=f"{_FOR_BOTH}{override}")
    for name, our_id, their_id, added in (
        ("bos", ours.bos_id, theirs.bos_id, ours.add_bos and theirs.add_bos),
        ("eos", ours.eos_id, theirs.eos_id, False),
    ):
        if our_id == their_id:
            continue
        override = f"--override-kv tokenizer.ggml.{name}_token_id=int:{-1 if our_id is None else our_id}"
        same_token = our_id is None or named(pair.target, our_id) == named(pair.draft, our_id)
        yield SPECIAL.finding(
            f"{name.upper()}: target {named(pair.target, our_id)}, draft {named(pair.draft, their_id)}",
            "blocks" if added else "slows",
            meaning="The pair is refused."
            if added
            else "Older builds refuse the pair or silently translate tokens. Newer builds compare only tokens that are "
            "added to texts, and accept the pair.",
            fix=f"{_FOR_BOTH}{override}" if same_token else _OTHER_DRAFT,
        )


FACTS = EngineFacts(
    name="llama-server",
    title="llama.cpp",
    aliases=("llama.cpp", "llamacpp", "llama_server", "llama-cpp-python"),
    weights="gguf",
    memory=EngineMemory("layers", 450 * MB, 0, 512, 512, offloads=True),
    quantisations={"GGUF": ""},
    best_weights="a GGUF of the model (or convert the unquantised checkpoint: python convert_hf_to_gguf.py FOLDER "
    "--outfile model.gguf)",
    check_vocabulary=check_vocabulary,
    has_own_kernels=True,
    least_capability=5.0,
    uses_llama_cpp_python=True,
    image=EngineImage(
        "ghcr.io/ggml-org/llama.cpp:server-cuda",
        "/app/llama-server",
        "--alias",
        user=1000,
        group=1000,
        home="/tmp",
        note="The tag server-cuda moves with llama.cpp. To stay at one build, pass --image "
        "ghcr.io/ggml-org/llama.cpp:server-cuda-bNUMBER.",
    ),
)
