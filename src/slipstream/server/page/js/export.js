/** A conversation as a file. */

import { make } from "./dom.js";

/** What a JSON export holds; never the API key. */
export function asJson(turns, model, settings) {
  const messages = turns.map(({ role, content, answer }) => {
    if (!answer) return { role, content };
    const tokens = answer.tokens.map(({ id, text, drafter, chance }) => ({ id, text, drafter, chance }));
    return { role, content: answer.text, finish_reason: answer.finish, usage: answer.usage, slipstream: answer.figures, tokens };
  });
  return JSON.stringify({ model, exported: new Date().toISOString(), settings, messages }, null, 2);
}

export function asMarkdown(turns, model) {
  const parts = turns.map(({ role, content, answer }) => {
    const name = role === "user" ? "You" : model;
    return `## ${name}\n\n${(answer ? answer.text : content).trim()}\n`;
  });
  return `# Conversation with ${model}\n\n${parts.join("\n")}`;
}

export function download(text, type, ending) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const stamp = new Date().toISOString().slice(0, 16).replace(/[:T]/g, "-");
  make("a", { href: address, download: `slipstream-${stamp}.${ending}` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
