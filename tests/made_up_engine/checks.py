import re

from made_up_engine.flags import FLAGS
from slipstream.findings import Finding
from slipstream.parsing.command_line import Word, parse
from slipstream.parsing.config_checks import check_options
from slipstream.parsing.configuration import CommandConfiguration


def lint_command(words: list[Word]) -> list[Finding]:
    return list(check_options(parse(words, FLAGS).options, FLAGS))


CONFIGURATION = CommandConfiguration("made-up", re.compile(r"(.*/)?made-up$"), FLAGS, lint_command)
