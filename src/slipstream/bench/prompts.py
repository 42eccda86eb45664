"""A few prompts of the project's own, by kind of text."""

from __future__ import annotations

_STORY = (
    "The lighthouse keeper climbed the stairs every evening at six. He lit the lamp, wound the clock and wrote the "
    "weather into a heavy green book. In winter the waves reached the windows, and in summer the gulls slept on the "
    "railing. Nobody had visited the island for eleven years, but the keeper laid two plates on the table every night."
)
_CODE = """def total_price(items, tax):
    total = 0
    for item in items:
        total = total + item["price"] * item["count"]
    total = total + total * tax
    return total
"""
_ORDER = (
    "Order 4471 was placed by Maria Lopez on 3 March. She bought 2 desk lamps at 18.50 each and 1 office chair at "
    "129.00. The parcel goes to 12 Harbour Road, Bristol."
)

DEMO_PROMPTS: dict[str, list[dict[str, str]]] = {
    "rewrite": [{"role": "user", "content": f"Copy the following text, and change nothing:\n\n{_STORY}"}],
    "code edit": [
        {"role": "user", "content": f"Rename the variable total to amount in this code, and show all of it:\n\n{_CODE}"}
    ],
    "extraction": [
        {"role": "user", "content": f"Write customer, date, items and address of this order as JSON:\n\n{_ORDER}"}
    ],
    "chat": [{"role": "user", "content": "Explain in a few sentences why leaves are green."}],
}
