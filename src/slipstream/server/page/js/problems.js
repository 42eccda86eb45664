/** What can go wrong with a request, and what to say about it. */

export class Problem extends Error {
  constructor(kind, message = "", more = {}) {
    super(message);
    this.kind = kind; // unreachable, interrupted, or an HTTP status
    this.retryAfter = more.retryAfter ?? null; // seconds
    this.param = more.param ?? null; // the field that is wrong
    this.hadKey = more.hadKey ?? false; // whether an API key was sent
  }
}

/** The problem that an answer with an error status reports. */
export async function problemOf(response, hadKey) {
  const said = (await response.json().catch(() => ({}))).error ?? {};
  const seconds = Number(response.headers.get("Retry-After"));
  return new Problem(response.status, said.message ?? "", { retryAfter: seconds || null, param: said.param, hadKey });
}

const STATUS = { timeout: 504, shutting_down: 503, queue_full: 429, context_length_exceeded: 400 };

/** The problem that an event in the middle of an answer reports: it has a code, no status. */
export function problemInStream(error) {
  return new Problem(STATUS[error.code] ?? "failed", error.message, { param: error.param });
}

const TEXTS = {
  unreachable: () => ["The server can't be reached", "Check that it is running (slipstream serve), then try again."],
  interrupted: () => [
    "The connection ended in the middle of the answer",
    "The text that arrived is kept. The server may have stopped: check that it is running, then try again.",
  ],
  401: (problem) => [
    problem.hadKey ? "The server refused the API key" : "This server needs an API key",
    "Enter the key in the settings. It is kept in this tab only.",
  ],
  404: (problem) => ["The server doesn't have this", problem.message],
  413: () => ["The message is too long for this server", "Shorten it, or start a new conversation."],
  429: (problem) => [
    "The server is busy: its queue is full",
    problem.retryAfter ? `Try again in ${problem.retryAfter} s.` : "Try again in a moment.",
  ],
  503: (problem) => ["The server takes no more requests now", sentence(problem.message)],
  504: () => ["The answer took too long", "The server's time limit was reached. Ask for fewer tokens, or try again later."],
};

/** {title, advice, action}; action is "key", "settings" or "retry". */
export function explain(problem) {
  const known = TEXTS[problem.kind];
  if (known) {
    const [title, advice] = known(problem);
    return { title, advice, action: problem.kind === 401 ? "key" : "retry" };
  }
  if (problem.kind === 400) return { title: "The server refused the request", advice: refused(problem), action: "settings" };
  return { title: "The answer failed", advice: sentence(problem.message) || "The server gave no reason.", action: "retry" };
}

function refused(problem) {
  const { param, message } = problem;
  return sentence(param && !message.startsWith(`${param}:`) ? `${param}: ${message}` : message);
}

function sentence(text) {
  return text && !/[.!?]$/.test(text) ? `${text}.` : text;
}
