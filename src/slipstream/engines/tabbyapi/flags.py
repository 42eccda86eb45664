"""TabbyAPI: the sections of config.yml and their keys. It silently ignores unknown sections and keys."""

from __future__ import annotations

from slipstream.parsing.flag_table import Flag, Gone, Table

CACHE_MODES = ("FP16", "Q8", "Q6", "Q4")
DRAFT_MODES = ("model", "disabled", "mtp", "ngram")

# Sections that people write, and what they are called.
SECTION_NAMES = {"draft": "draft_model", "drafting": "draft_model", "speculative": "draft_model", "loras": "lora"}


def _section(*flags: Flag, gone: tuple[Gone, ...] = ()) -> Table:
    return Table("tabbyapi", "TabbyAPI main, 2026", "from public documentation: config_sample.yml", flags, gone=gone)


SECTIONS: dict[str, Table] = {
    "network": _section(
        Flag("host"),
        Flag("port", "int", at_least=0, at_most=65535),
        Flag("disable_auth", "bool"),
        Flag("disable_fetch_requests", "bool"),
        Flag("send_tracebacks", "bool"),
        Flag("api_servers", "list"),
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
        Flag("backend", choices=("exllamav2", "exllamav3")),
        Flag("max_seq_len", "int", at_least=-1),
        Flag("cache_size", "int", at_least=1),
        Flag("cache_mode"),  # also pairs of bits: configs_tabbyapi checks it
        Flag("tensor_parallel", "bool"),
        Flag("tensor_parallel_backend", choices=("native", "nccl")),
        Flag("gpu_split_auto", "bool"),
        Flag("autosplit_reserve", "list"),
        Flag("gpu_split", "list"),
        Flag("rope_scale", "float"),
        Flag("rope_alpha", "float", words=("auto",)),
        Flag("chunk_size", "int", at_least=1),
        Flag("output_chunking", "bool"),
        Flag("max_batch_size", "int", at_least=1),
        Flag("prompt_template"),
        Flag("vision", "bool"),
        Flag("force_enable_thinking", "bool"),
        Flag("reasoning", "bool"),
        Flag("reasoning_start_token"),
        Flag("reasoning_end_token"),
        Flag("reasoning_suppress_header"),
        Flag("tool_format"),
        Flag("num_experts_per_token", "int", at_least=1),
        gone=(
            Gone("ngram_decoding", "draft_mode: ngram in the section draft_model (ExLlamaV3)"),
            Gone("draft", "a section of its own: draft_model"),
            Gone("draft_mode", "draft_mode in the section draft_model"),
            Gone("draft_model_name", "draft_model_name in the section draft_model"),
            Gone("override_base_seq_len", "max_seq_len"),
            Gone("low_mem", "cache_mode: Q4"),
            Gone("fasttensors", "nothing instead: remove it"),
        ),
    ),
    "draft_model": _section(
        Flag("draft_mode", choices=DRAFT_MODES),
        Flag("draft_model_dir"),
        Flag("draft_model_name"),
        Flag("draft_rope_scale", "float"),
        Flag("draft_rope_alpha", "float", words=("auto",)),
        Flag("draft_cache_mode"),  # also pairs of bits: configs_tabbyapi checks it
        Flag("draft_gpu_split", "list"),
        Flag("draft_num_tokens", "int", at_least=1),
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
    "memory": _section(Flag("sysmem_recurrent_cache", "int", at_least=0), Flag("cuda_malloc_async", "bool")),
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
