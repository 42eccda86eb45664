"""`slipstream serve`: the engine behind an OpenAI-compatible API, for many users at once.

The path of a request: `app` routes it, `body` reads it within limits, `requests` checks it, `preparing` makes calls of
the engine of it, `scheduler` queues them and hands them to the engine's thread, `responding` and `answers` write what
comes back.
"""
