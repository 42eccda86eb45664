"""TabbyAPI, the server of ExLlama."""
