"""Many requests at once: all answers advance together, in one forward pass of the model per round."""

import slipstream

ANIMALS = ["cat", "dog", "horse", "whale", "owl", "ant"]

engine = slipstream.load("smollm2-135m", max_streams=4)  # the others wait until there is room

# `generate` only registers a request. Rounds are run by whoever reads tokens, for all answers.
answers = [
    engine.generate([{"role": "user", "content": f"Describe a {animal} in one sentence."}], max_tokens=16)
    for animal in ANIMALS
]
for animal, answer in zip(ANIMALS, answers, strict=True):
    print(f"{animal}: {answer.result().text}")

stats = engine.stats
print(f"{stats.num_tokens} tokens in {stats.target_forwards} forward passes")
