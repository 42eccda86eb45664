from slipstream.findings import Finding, worst_first


def test_findings_are_shown_once_and_the_worst_first():
    note, block = Finding("a-b", "note", "seen", "means", "do"), Finding("a-c", "blocks", "seen", "means", "do")
    other = Finding("a-b", "note", "seen elsewhere", "means", "do")
    assert worst_first([note, other, block, note]) == [block, note, other]
