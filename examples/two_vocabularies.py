"""Two models of different vocabularies: the small one drafts, its text is translated into the large one's tokens.

    python two_vocabularies.py TARGET DRAFT

Most engines refuse such a pair. By default the built-in model drafts for one of the Qwen family, which is fetched from
the Hugging Face hub (3 GB).
"""

import sys

import slipstream

names = sys.argv[1:3] or ["Qwen/Qwen2.5-1.5B-Instruct", "smollm2-135m"]
target, draft = (slipstream.load_model(name) for name in names)
plain = slipstream.load(target, drafter="none")

for model in (target, draft):  # the same text is other token ids to each of them
    print(slipstream.load(model, drafter="none").encode("Hello, world"))

engine = slipstream.load(target, draft=draft, drafter="translate", policy="fixed(4)")

expected = plain.generate("Once upon a time", max_tokens=32).result()
answer = engine.generate("Once upon a time", max_tokens=32).result()
print(answer.text)
print(f"{answer.stats.num_accepted} of {answer.stats.num_drafted} drafted tokens accepted")
print(f"{answer.stats.target_forwards} forward passes instead of {expected.stats.target_forwards}")
print(f"same text: {answer.text == expected.text}")
