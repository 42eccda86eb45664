"""SGLang's own failures."""

from __future__ import annotations

from slipstream.findings import rule
from slipstream.parsing.log_patterns import Patterns

FAILURES = Patterns()
FAILURES.add(
    rule(
        "log-sglang-memory",
        "blocks",
        "SGLang: no memory is left for the KV cache",
        "After loading the weights, nothing of the share of GPU memory (--mem-fraction-static) is left for the KV "
        "cache.",
        "Raise --mem-fraction-static (0.9), use a smaller model or quantisation, a smaller draft, or more GPUs "
        "(--tp-size).",
    ),
    "Not enough memory. Please try to increase --mem-fraction-static",
    "or increase --mem-fraction-static",
    "Raise --mem-fraction-static above",
    "is larger than the profiled value -",  # of tokens: the room for the cache is negative
    matches=r"(?:Error|Exception).{0,300}--mem-fraction-static|profiled value -\d",
)
FAILURES.add(
    rule(
        "log-sglang-pool",
        "blocks",
        "SGLang: the pool for requests or tokens is full",
        "SGLang found no free place for a request or its tokens: {reason}. More requests run at a time than the pool "
        "has places for; with pipeline parallelism or speculation it may be a fault of this version.",
        "Lower --max-running-requests, raise --mem-fraction-static, shorten the context, or send fewer requests at a "
        "time. If that does not help, update SGLang.",
    ),
    "alloc_req_slots runs out of memory",
    "Prefill out of memory. Try to lower your batch size",
    "Decode out of memory. Try to lower your batch size",
    "memory leak detected",
    "req_pool_indices.cpu()",
    matches=r"(?P<reason>alloc_req_slots runs out of memory|(?:Prefill|Decode) out of memory|\w*memory leak detected|"
    r"req_pool_indices)",
    instead_of=("log-cuda-memory",),
)
FAILURES.add(
    rule(
        "log-sglang-unbalanced",
        "blocks",
        "SGLang: other processes use a GPU's memory",
        "The GPUs have different amounts of free memory: other processes use one of them.",
        "Find these processes with nvidia-smi and stop them, or choose other GPUs with CUDA_VISIBLE_DEVICES.",
    ),
    "The memory capacity is unbalanced",
    matches=r"(?:Error|Exception): .{0,40}memory capacity is unbalanced",
)
FAILURES.add(
    rule(
        "log-vocab-sglang",
        "blocks",
        "SGLang: draft and target have different vocabularies",
        "The target has {target} tokens and the draft {draft}; this method of SGLang needs the same vocabulary.",
        "Use a draft of the target's family (slipstream pairs --target TARGET), or a method without a draft model: "
        "NGRAM.",
    ),
    "requires the draft model to share the same vocabulary",
    "requires identical target and draft vocab sizes",
    "hidden size and vocabulary must match the target",
    matches=r"target(?: vocab_size)?=(?P<target>\d+)(?: and|,) draft(?: vocab_size)?=(?P<draft>\d+)|must match the "
    r"target",
)
FAILURES.add(
    rule(
        "log-sglang-topk",
        "blocks",
        "SGLang: a tree of drafts is not supported here",
        "The attention backend or method drafts one branch only, and --speculative-eagle-topk asks for a tree: "
        "{reason}.",
        "Set --speculative-eagle-topk 1 with --speculative-num-draft-tokens = steps + 1, or use another backend "
        "(--attention-backend flashinfer, --page-size 1).",
    ),
    "topk",
    matches=r"(?:Error|Exception): (?P<reason>.{0,120}(?:only supports? topk|topk ?(?:=|==|\(\d+\) >|>) ?1|-topk[= ]1|"
    r"eagle-topk to be|topk=1 requires).{0,120})",
)
FAILURES.add(
    rule(
        "log-sglang-draft-kind",
        "blocks",
        "SGLang: the draft needs another algorithm",
        "The kind of draft does not fit --speculative-algorithm: {reason}.",
        "Set the algorithm that the message names (NEXTN for heads of multi-token prediction, EAGLE3 only for EAGLE-3 "
        "heads).",
    ),
    "draft requires --speculative-algorithm",
    "Unknown speculative algorithm name",
    "Only EAGLE",
    matches=r"(?:Error|Exception): (?P<reason>.{0,80}(?:draft requires --speculative-algorithm|Unknown speculative "
    r"algorithm|Only EAGLE).{0,120})",
)
FAILURES.add_general(
    rule(
        "log-sglang-settings",
        "blocks",
        "SGLang refuses the speculative settings",
        "SGLang refuses the settings of speculation: {reason}.",
        "Change one of the two things that the message names; one method can't be combined with every other option "
        "(DP attention, pipeline parallelism, page size). slipstream doctor --engine sglang --config FILE checks the "
        "command.",
    ),
    "ValueError: ",
    "AssertionError: ",
    "NotImplementedError: ",
    matches=r"(?:Value|Assertion|NotImplemented)Error: (?P<reason>.{0,160}?(?:[Ss]peculative|EAGLE|NEXTN|DFLASH|"
    r"DSpark|DSPARK|NGRAM|[Nn]gram|STANDALONE|\bUNO\b|[Dd]raft|\bMTP\b).{0,160})",
    instead_of=("log-refused", "log-settings"),
)
FAILURES.add(
    rule(
        "log-sglang-target-class",
        "blocks",
        "SGLang: this version can't draft for the model",
        "The class {name} of this version has no function that this way of drafting needs: the release is older than "
        "the support of such drafts for this model, or the settings lead to another way than the one made for it.",
        "Start once without --quantization: a quantised pair may take another path of drafting. Update SGLang. If the "
        "newest has it neither, use NGRAM, or a plain draft model (STANDALONE).",
    ),
    "has no attribute 'get_embed_and_head'",
    "has no attribute 'set_embed_and_head'",
    "has no attribute 'set_eagle3_layers_to_capture'",
    "has no attribute 'get_embed'",
    "has no attribute 'set_embed'",
    matches=r"'(?P<name>\w{1,60})' object has no attribute",
    instead_of=("log-attribute-missing",),
)
FAILURES.add(
    rule(
        "log-sglang-draft-shapes",
        "blocks",
        "SGLang: tensors of draft and target do not fit",
        "Two tensors in the drafting code do not fit: {reason}. Known causes are a tree of drafts "
        "(--speculative-eagle-topk above 1) with the newer scheduler, and a STANDALONE draft with another hidden size "
        "than the target in older versions.",
        "Set --speculative-eagle-topk 1 (or SGLANG_ENABLE_SPEC_V2=0), and update SGLang.",
    ),
    "Sizes of tensors must match except in dimension",
    "must match the size of tensor b",
    "The expanded size of the tensor",
    "mat1 and mat2 shapes cannot be multiplied",
    matches=r"Error: (?P<reason>(?:Sizes of tensors|The size of tensor|The expanded size|mat1 and mat2).{0,120})",
    only_with=("sglang/srt/speculative", "_eagle3.py", "_eagle.py", "eagle_worker", "nextn.py"),
    instead_of=("log-tensor-sizes",),
)
FAILURES.add_general(
    rule(
        "log-capture",
        "blocks",
        "SGLang: recording CUDA graphs failed",
        "Recording CUDA graphs failed: {reason}.",
        "Start with --disable-cuda-graph to see whether the rest works; then fewer sizes (--cuda-graph-max-bs 8), a "
        "smaller --mem-fraction-static, another --attention-backend, or a newer version.",
    ),
    "Capture cuda graph failed: ",
    matches=r"Capture cuda graph failed: (?P<reason>.{0,160})",
)
FAILURES.add(
    rule(
        "log-sglang-watchdog",
        "blocks",
        "SGLang: the scheduler hangs",
        "The scheduler did not finish a step in the time allowed, and its watchdog ended it. A kernel or the "
        "communication between GPUs hangs, or one step is very long (compilation, a huge batch).",
        "Look at the stacks that the watchdog printed: they name the function. Start once without speculation and once "
        "without --enable-hierarchical-cache, since the two together may hang. Then try --disable-cuda-graph, "
        "--disable-custom-all-reduce, fewer requests at a time, and a longer --watchdog-timeout for slow steps.",
    ),
    "Watchdog timeout (",
    "watchdog timeout (",
    "Scheduler watchdog timeout",
    instead_of=("log-killed",),  # the parent kills the others
)
FAILURES.add(
    rule(
        "log-sglang-retracted",
        "slows",
        "SGLang: requests are interrupted because the KV cache is full",
        "Requests do not fit the KV cache together, so SGLang interrupts some and computes them again later.",
        "Lower --max-running-requests, raise --mem-fraction-static, or shorten the context or the answers.",
    ),
    "KV cache pool is full. Retract requests",
)
FAILURES.add(
    rule(
        "log-graph-memory",
        "blocks",
        "SGLang: no memory is left for CUDA graphs",
        "Weights and cache pool leave too little GPU memory for recording CUDA graphs.",
        "Lower --mem-fraction-static by 0.05 to 0.1, record fewer sizes (--cuda-graph-max-bs 8), or start with "
        "--disable-cuda-graph.",
    ),
    "Capture cuda graph failed: CUDA out of memory",
    instead_of=("log-cuda-memory", "log-capture"),
)
FAILURES.add(
    rule(
        "log-sglang-steps",
        "blocks",
        "SGLang: speculative settings are incomplete",
        "Only some of the three numbers of drafting are set, and SGLang needs all or none of them.",
        "Set --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 together, or none "
        "of them.",
    ),
    "not supported between instances of 'NoneType' and 'int'",
    "assert server_args.speculative_num_steps",
    only_with=("speculative",),
)
