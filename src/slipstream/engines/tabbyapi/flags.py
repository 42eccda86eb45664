"""TabbyAPI: the sections of config.yml and their keys. It silently ignores unknown sections and keys."""

from __future__ import annotations

from slipstream.parsing.flag_table import Flag, Gone, Table

CACHE_MODES = ("FP16", "Q8", "Q6", "Q4")
REASONING_STARTS = ("auto", "always", "never")
DRAFT_MODES = ("model", "disabled", "mtp", "ngram")

# Sections that people write, and what they are called.
SECTION_NAMES = {"draft": "draft_model", "drafting": "draft_model", "speculative": "draft_model", "loras": "lora"}


def _section(*flags: Flag, gone: tuple[Gone, ...] = ()) -> Table:
    return Table(
        "tabbyapi", "TabbyAPI main, 2026", "common/config_models.py of its source, 2026-08-13", flags, gone=gone
    )


SECTIONS: dict[str, Table] = {
    "network": _section(
        Flag("host"),
        Flag("port", "int", at_least=0, at_most=65535),
        Flag("disable_auth", "bool"),
        Flag("disable_fetch_requests", "bool"),
        Flag("send_tracebacks", "bool"),
        Flag("api_servers", "list"),
        Flag("sse_ping_interval", "int", at_least=0),
    ),
    "logging": _section(
        Flag("log_prompt", "bool"),
        Flag("log_generation_params", "bool"),
        Flag("log_requests", "bool"),
        Flag("log_chat_completion_requests", "bool"),
        gone=(Gone("prompt", "log_prompt"), Gone("generation_params", "log_generation_params")),
    ),
    "model": _section(
        Flag("model_dir"),
        Flag("model_name"),
        Flag("inline_model_loading", "bool"),
        Flag("use_dummy_models", "bool"),
        Flag("dummy_model_names", "list"),
        Flag("use_as_default", "list"),
        Flag("backend", choices=("exllamav3",)),
        Flag("max_seq_len", "int", at_least=-1),
        Flag("cache_size", "int", at_least=1),
        Flag("cache_mode"),  # also pairs of bits: checks.py
        Flag("tensor_parallel", "bool"),
        Flag("tensor_parallel_backend", choices=("native", "nccl")),
        Flag("gpu_split_auto", "bool"),
        Flag("autosplit_reserve", "list"),
        Flag("gpu_split", "list"),
        Flag("cpu_moe_offload_layers", "int"),
        Flag("rope_scale", "float"),
        Flag("rope_alpha", "float", words=("auto",)),
        Flag("chunk_size", "int", at_least=1),
        Flag("output_chunking", "bool"),
        Flag("max_batch_size", "int", at_least=1),
        Flag("prompt_template"),
        Flag("vision", "bool"),
        Flag("template_vars_default", "json"),
        Flag("template_vars_force", "json"),
        Flag("force_enable_thinking", "bool"),
        Flag("reasoning", "bool"),
        Flag("reasoning_start_token"),
        Flag("reasoning_end_token"),
        Flag("start_in_reasoning", choices=REASONING_STARTS),
        Flag("tool_calls_in_reasoning", "bool"),
        Flag("reasoning_budget_tokens", "int"),
        Flag("reasoning_budget_message"),
        Flag("tool_format"),
        Flag("harmony", "bool"),
        Flag("muse_glimmer", "bool"),
        gone=(
            Gone("ngram_decoding", "draft_mode: ngram in the section draft_model (ExLlamaV3)"),
            Gone("draft", "a section of its own: draft_model"),
            Gone("draft_mode", "draft_mode in the section draft_model"),
            Gone("draft_model_name", "draft_model_name in the section draft_model"),
            Gone("override_base_seq_len", "max_seq_len"),
            Gone("low_mem", "cache_mode: Q4"),
            Gone("num_experts_per_token", "nothing instead: remove it"),
            Gone("reasoning_suppress_header", "nothing instead: remove it"),
            Gone("fasttensors", "nothing instead: remove it"),
        ),
    ),
    "draft_model": _section(
        Flag("draft_mode", choices=DRAFT_MODES),
        Flag("draft_model_dir"),
        Flag("draft_model_name"),
        Flag("draft_rope_scale", "float"),
        Flag("draft_rope_alpha", "float"),
        Flag("draft_cache_mode", choices=CACHE_MODES),
        Flag("draft_gpu_split", "list"),
        Flag("draft_num_tokens", "int", at_least=0),
        Flag("dynamic_draft", "bool"),
        Flag("ngram_match_min", "int", at_least=1),
        gone=(Gone("ngram_decoding", "draft_mode: ngram (ExLlamaV3)"),),
    ),
    "sampling": _section(Flag("override_preset")),
    "lora": _section(Flag("lora_dir"), Flag("loras", "list")),
    "embeddings": _section(
        Flag("embedding_model_dir"),
        Flag("embeddings_device", choices=("cpu", "auto", "cuda")),
        Flag("embedding_model_name"),
    ),
    "memory": _section(
        Flag("sysmem_recurrent_cache", "int", at_least=0),
        Flag("sysmem_kv_cache", "int", at_least=0),
        Flag("cuda_malloc_async", "bool"),
    ),
    "developer": _section(
        Flag("unsafe_launch", "bool"),
        Flag("disable_request_streaming", "bool"),
        Flag("realtime_process_priority", "bool"),
        Flag("seqlog", "bool"),
        Flag("seqlog_server_url"),
        Flag("seqlog_api_key"),
        gone=(
            Gone("cuda_malloc_backend", "cuda_malloc_async in the section memory"),
            Gone("uvloop", "nothing instead: remove it"),
        ),
    ),
}
