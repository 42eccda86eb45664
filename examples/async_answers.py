"""Answers in asyncio: several tasks ask one engine, the event loop is never blocked, a timeout cancels an answer."""

import asyncio

import slipstream


async def ask(engine: slipstream.Engine, question: str, max_tokens: int = 16) -> str:
    answer = engine.generate([{"role": "user", "content": question}], max_tokens=max_tokens)
    async for _token in answer:
        pass  # a server would send token.text to its client here
    return answer.text


async def main() -> None:
    engine = await asyncio.to_thread(slipstream.load, "smollm2-135m")
    questions = ["What is a comet?", "What is a fjord?", "What is a sonnet?"]
    for question, text in zip(questions, await asyncio.gather(*(ask(engine, q) for q in questions)), strict=True):
        print(f"{question} {text}")

    # A client that leaves: cancelling the task cancels its answer, and the others go on.
    try:
        await asyncio.wait_for(ask(engine, "Tell me a long story.", max_tokens=1000), timeout=0.1)
    except TimeoutError:
        print("the story took too long, and was cancelled")
    print(await ask(engine, "Say hello.", max_tokens=8))


asyncio.run(main())
