"""Streaming: print the text as it comes, and show which tokens were drafted."""

import slipstream

engine = slipstream.load("smollm2-135m", drafter="suffix")
question = [{"role": "user", "content": "Count from one to ten, then count again."}]

answer = engine.generate(question, max_tokens=48)
for token in answer:
    # A drafted token was proposed by the drafter and accepted by the model. They are shown in brackets.
    print(f"[{token.text}]" if token.drafted else token.text, end="", flush=True)
print()

stats = answer.stats
print(f"{stats.num_accepted} of {stats.num_drafted} drafted tokens accepted")
print(f"{stats.mean_accepted_length:.2f} tokens per forward pass")

# Leaving the loop early cancels the answer and frees its place in the cache.
for number, _token in enumerate(answer := engine.generate(question, max_tokens=48), start=1):
    if number == 5:
        break
print(f"left after {number} tokens: {answer.finish_reason}")
