"""A drafter of your own: it proposes what comes next in a text that the answer is likely to quote.

A drafter may be wrong: the model checks every proposal, so the answer stays the same.
"""

import slipstream

QUOTED = "one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, thirteen, fourteen, fifteen"


class DocumentDrafter:
    name = "document"
    is_free = True  # a proposal costs next to nothing, so the policy may always ask

    def __init__(self, document: list[int]) -> None:
        self.document = document
        self.after = {tuple(document[i - 2 : i]): i for i in range(2, len(document))}  # two tokens -> the next place

    def begin(self, stream: slipstream.Stream) -> None:
        pass  # an answer starts: stream.tokens is its prompt

    def propose(self, streams, budgets) -> list[slipstream.DraftTree]:
        drafts = []
        for stream, budget in zip(streams, budgets, strict=True):
            at = self.after.get(tuple(stream.tokens[-2:]), len(self.document))
            drafts.append(slipstream.DraftTree.chain(self.document[at : at + budget]))  # may be empty
        return drafts

    def observe(self, observations) -> None:
        pass  # what was accepted: a drafter that learns looks here

    def end(self, stream: slipstream.Stream) -> None:
        pass  # the answer is over: free what was kept for it


model = slipstream.load_model("smollm2-135m")
plain = slipstream.load(model, drafter="none")
engine = slipstream.load(model, drafter=DocumentDrafter(plain.encode(QUOTED)), policy="fixed(6)")

prompt = "Counting: one, two, three, four,"
expected = plain.generate(prompt, max_tokens=24).result()
answer = engine.generate(prompt, max_tokens=24).result()
print(answer.text)
print(f"{answer.stats.num_accepted} of {answer.stats.num_drafted} drafted tokens accepted")
print(f"{answer.stats.target_forwards} forward passes instead of {expected.stats.target_forwards}")
print(f"same text: {answer.text == expected.text}")
