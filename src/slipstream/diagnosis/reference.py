"""The documentation page of all rules, written from the rules themselves: python -m slipstream.diagnosis.reference"""

from __future__ import annotations

from slipstream.catalogue import pairs  # noqa: F401  the rules register themselves on import
from slipstream.diagnosis import examine, runtime  # noqa: F401
from slipstream.findings import RULES, TOPICS
from slipstream.predict import memory  # noqa: F401

_HEAD = """# What the doctor looks for

Written by `python -m slipstream.diagnosis.reference`; edit the rules, not this page. *blocks* means that it cannot
work, *slows* that it works with a loss, *note* that it is good to know. Names in braces are filled in.
"""


def page() -> str:
    parts = [_HEAD]
    for topic in TOPICS:
        rules = [rule for rule in RULES.values() if rule.topic == topic]
        if rules:
            parts.append(f"## {topic.capitalize()}\n")
        for rule in sorted(rules, key=lambda rule: rule.id):
            parts.append(f"### `{rule.id}` ({rule.severity})\n\n{rule.title}.\n\n{rule.cause}\n\n*Do:* {rule.fix}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
