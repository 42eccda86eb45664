"""Engines that own their loop: vLLM, llama-server, SGLang, TabbyAPI, Ollama. `flags` says what each of them takes."""
