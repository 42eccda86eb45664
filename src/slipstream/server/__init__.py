"""`slipstream serve`: the engine behind an OpenAI-compatible API, for many users at once.

The path of a request: `app` routes it, `body` reads it within limits, `chat_api` or `completions_api` checks and
prepares it, `scheduler` queues it and hands it to the engine's thread, `answers` writes what comes back.
"""
