"""What Slipstream can do, one function each, with typed options and results. Commands and servers call these.

Nothing here prints: what people may want to watch goes to a `Reporter`.
"""
