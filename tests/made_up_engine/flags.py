from slipstream.parsing.flag_table import Flag, Table

FLAGS = Table(
    engine="made-up",
    version="Made-up 1.0",
    source="nowhere",
    flags=(Flag("--model"), Flag("--port", "int", at_least=1), Flag("--guesses", "int", at_least=1, at_most=9)),
)
