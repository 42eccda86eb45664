/** An answer as it arrives: its tokens with the time of each, and its figures. Chat and race both read one. */

import { chat } from "./api.js";

export class Answer {
  constructor() {
    this.tokens = []; // {id, text, drafter, chance, at}; at: milliseconds since the request
    this.figures = null; // what speculation did
    this.usage = null;
    this.finish = null; // "stop", "length"
  }

  get text() {
    return this.tokens.map((token) => token.text).join("");
  }

  /** Seconds from the first token to the last. */
  get seconds() {
    return this.tokens.length ? (this.tokens.at(-1).at - this.tokens[0].at) / 1000 : 0;
  }

  /** Tokens per second after the first tokens, which had to wait for the prompt. Null as long as it means nothing. */
  get rate() {
    const first = this.tokens[0]?.at;
    const later = this.tokens.filter((token) => token.at > first).length;
    return later ? later / this.seconds : null;
  }
}

/** Asks, fills `answer`, and calls `onTokens` with what is new. Throws a Problem, or an AbortError. */
export async function ask(body, answer, onTokens, signal) {
  const started = performance.now();
  for await (const chunk of chat({ ...body, stream: true, stream_options: { include_usage: true } }, signal)) {
    const choice = chunk.choices[0];
    const fresh = tokensOf(chunk, choice).map((token) => ({ ...token, at: performance.now() - started }));
    answer.finish = choice?.finish_reason ?? answer.finish;
    if (chunk.usage) {
      answer.usage = chunk.usage;
      answer.figures = chunk.slipstream;
    }
    if (fresh.length) {
      answer.tokens.push(...fresh);
      onTokens(fresh);
    }
  }
}

function tokensOf(chunk, choice) {
  const text = choice?.delta?.content;
  if (chunk.slipstream?.tokens) return chunk.slipstream.tokens;
  return text ? [{ id: null, text, drafter: null, chance: null }] : [];
}
