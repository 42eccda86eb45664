/** The server's API. Addresses are relative, so that the page also works behind a proxy's path. */

import { events } from "./events.js";
import { Problem, problemInStream, problemOf } from "./problems.js";
import { apiKey } from "./settings.js";

async function request(path, options = {}) {
  const headers = { ...options.headers };
  if (apiKey()) headers.Authorization = `Bearer ${apiKey()}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("unreachable", error.message);
  }
  if (!response.ok) throw await problemOf(response, Boolean(apiKey()));
  return response;
}

async function get(path) {
  const response = await request(path);
  return response.json().catch((error) => { throw new Problem("unreachable", error.message); });
}

export const model = async () => (await get("v1/models")).data[0];
export const stats = () => get("v1/slipstream/stats");

/** Yields the chunks of a streamed chat completion. */
export async function* chat(body, signal) {
  const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal };
  const response = await request("v1/chat/completions", options);
  for await (const data of whileConnected(events(response.body))) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw problemInStream(chunk.error);
    yield chunk;
  }
  throw new Problem("interrupted");
}

async function* whileConnected(parts) {
  try {
    yield* parts;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("interrupted", error.message);
  }
}
