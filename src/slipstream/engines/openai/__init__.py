"""Any OpenAI-compatible server that runs already."""
