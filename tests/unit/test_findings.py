import slipstream.parsing.config_checks  # noqa: F401  # declares its rules
from slipstream.findings import RULES, Finding, worst_first


def test_findings_are_shown_once_and_the_worst_first():
    note, block = Finding("a-b", "note", "seen", "means", "do"), Finding("a-c", "blocks", "seen", "means", "do")
    other = Finding("a-b", "note", "seen elsewhere", "means", "do")
    assert worst_first([note, other, block, note]) == [block, note, other]


def test_megabytes_in_a_finding_are_cut_to_beginning_and_end():
    found = RULES["config-syntax"].finding("a" + "x" * 5_000_000 + "z", what="y" * 5_000_000, where="b", hint="c")
    assert len(found.evidence) < 3_000 and found.evidence[0] == "a" and found.evidence[-1] == "z"
    assert len(found.cause) < 3_000


def test_a_finding_holds_nothing_that_commands_a_terminal() -> None:
    found = RULES["config-syntax"].finding("a\x1b]0;title\x07b\tc\nd", what="", where="", hint="")
    assert found.evidence == "a]0;titleb\tc\nd"
