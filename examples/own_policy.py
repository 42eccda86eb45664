"""A policy of your own: the draft grows while drafts are accepted whole, and shrinks when they are not.

A policy plans each round: whom to ask for how much, and what to check of it. It never changes the text.
"""

import slipstream
from slipstream import Ask, DraftTree, PolicyReport, RoundOutcome, RoundView, Stream


class DoublingPlan:
    next_draft = None  # the length of the next draft, if it is known: a GPU may then start that round early

    def __init__(self, view: RoundView, lengths: dict[int, int]) -> None:
        self.view, self.drafts, self.asked = view, {}, False
        share = view.max_nodes // max(1, len(view.streams))  # what one forward pass can check, shared by all
        self.wanted = [min(lengths.get(s.id, 1), room, share) for s, room in zip(view.streams, view.rooms, strict=True)]

    def asks(self) -> list[Ask]:
        if self.asked:  # it is called until it returns nothing
            return []
        self.asked = True
        pairs = zip(self.view.streams, self.wanted, strict=True)
        return [Ask(stream, stream.drafter, wanted) for stream, wanted in pairs if stream.drafter and wanted > 0]

    def receive(self, asks, proposals, draft_s: float) -> None:
        self.drafts = {ask.stream.id: draft for ask, draft in zip(asks, proposals, strict=True)}

    def keep(self) -> list[DraftTree]:
        return [self.drafts.get(stream.id, DraftTree()) for stream in self.view.streams]


class DoublingPolicy:
    name = "doubling"

    def __init__(self, longest: int = 16) -> None:
        self.longest = longest
        self.lengths: dict[int, int] = {}  # by stream

    def plan(self, view: RoundView) -> DoublingPlan:
        return DoublingPlan(view, self.lengths)

    def record(self, outcome: RoundOutcome) -> None:
        for seen in outcome.observations:
            if seen.scored:
                length = self.lengths.get(seen.stream.id, 1)
                whole = len(seen.verdict.path) == len(seen.scored)
                self.lengths[seen.stream.id] = min(2 * length, self.longest) if whole else max(1, length // 2)

    def forget(self, stream: Stream) -> None:
        self.lengths.pop(stream.id, None)

    def explain(self) -> PolicyReport:
        return PolicyReport(self.name, self.longest, "doubles after success", None, None)


engine = slipstream.load("smollm2-135m", drafter="suffix", policy=DoublingPolicy())
question = [{"role": "user", "content": "Write the days of the week three times."}]
answer = engine.generate(question, max_tokens=48).result()
print(answer.text)
print(f"{answer.stats.num_accepted} of {answer.stats.num_drafted} drafted tokens accepted")
print(f"rounds that drafted 1, 2, 3 … tokens: {answer.stats.to_dict()['drafted_by_depth']}")
