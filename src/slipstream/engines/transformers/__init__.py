"""transformers: `generate` with an assistant model."""
