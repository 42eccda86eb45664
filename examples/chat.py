"""A chat. Each question is sent with all that was said before; what the model has read already is reused."""

import sys

import slipstream

QUESTIONS = sys.argv[1:] or ["What is a prime number?", "Is nine one of them?", "Thank you!"]

engine = slipstream.load("smollm2-135m")
messages = [{"role": "system", "content": "You answer in one short sentence."}]

for question in QUESTIONS:
    messages.append({"role": "user", "content": question})
    answer = engine.generate(messages, max_tokens=32)
    print(f"> {question}")
    for token in answer:
        print(token.text, end="", flush=True)
    messages.append({"role": "assistant", "content": answer.text})

    # The key-value cache of finished answers is kept. A prompt that begins the same way is not read again.
    stats = answer.stats
    print(f"\n  ({stats.num_reused} of {stats.num_prompt_tokens} prompt tokens came from the cache)")
