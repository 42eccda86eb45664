/** The conversation. */

import { Answer, ask } from "./answer.js";
import { announce, byId, make } from "./dom.js";
import { asJson, asMarkdown, download } from "./export.js";
import { finishedLine, runningLine } from "./figures.js";
import { currentSettings, requestSettings } from "./settings.js";
import { addTokens, hideTip, tokenText } from "./tokens.js";
import { problemBox } from "./trouble.js";

const EXAMPLES = [
  "List the days of the week, then list them again in capitals.",
  "Write a Python class for a 2D point with add, subtract and multiply.",
  "Repeat after me, three times: the quick brown fox jumps over the lazy dog.",
];

const turns = []; // {role, content} or {role, answer}, with `element`
let running = null; // AbortController of the answer that is being written
let modelName = "model";
let raceThis = () => {};

export function startChat(onRace) {
  raceThis = onRace;
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    sendPrompt();
  });
  byId("prompt").addEventListener("keydown", onKey);
  byId("stop").addEventListener("click", stop);
  byId("new-chat").addEventListener("click", clear);
  byId("export-json").addEventListener("click", () => exportAs("json"));
  byId("export-markdown").addEventListener("click", () => exportAs("md"));
  byId("examples").append(...EXAMPLES.map(example));
}

export function nameModel(name) {
  modelName = name;
}

function example(text) {
  return make("li", {}, make("button", { type: "button", onclick: () => send(text) }, text));
}

function onKey(event) {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    sendPrompt();
  } else if (event.key === "Escape") {
    stop();
  }
}

function sendPrompt() {
  const text = byId("prompt").value.trim();
  if (!text || running) return;
  byId("prompt").value = "";
  send(text);
}

function send(text) {
  addTurn({ role: "user", content: text, element: make("li", { class: "turn user" }, make("h3", {}, "You"), make("p", { class: "text" }, text)) });
  byId("prompt").focus();
  reply(text);
}

function addTurn(turn) {
  turns.push(turn);
  byId("log").append(turn.element);
  showWhatFits();
  turn.element.scrollIntoView({ block: "end", behavior: "instant" });
}

function showWhatFits() {
  byId("chat-empty").hidden = turns.length > 0;
  byId("chat-tools").hidden = turns.length === 0;
}

/** The messages so far. An answer without any text is left out. */
function messages() {
  return turns
    .map(({ role, content, answer }) => ({ role, content: answer ? answer.text : content }))
    .filter((message) => message.content);
}

async function reply(prompt) {
  const body = { messages: messages(), ...requestSettings() };
  const turn = answerTurn();
  addTurn(turn);
  const control = setRunning(new AbortController());
  announce("Answering.");
  try {
    await ask(body, turn.answer, (fresh) => grow(turn, fresh), control.signal);
    following(() => finish(turn, prompt));
  } catch (error) {
    following(() => interrupt(turn, prompt, error));
  } finally {
    turn.element.classList.remove("running");
    if (running === control) setRunning(null);
  }
}

function answerTurn() {
  const text = tokenText("Answer");
  const meta = make("div", { class: "meta quiet figures" });
  const element = make("li", { class: "turn assistant running" }, make("h3", {}, modelName), text, meta);
  return { role: "assistant", answer: new Answer(), element, text, meta };
}

function grow(turn, fresh) {
  following(() => {
    addTokens(turn.text, fresh);
    turn.meta.textContent = runningLine(turn.answer);
  });
}

/** Changes the page, and keeps its end in sight if it was. */
function following(change) {
  const follows = atBottom();
  change();
  if (follows) window.scrollTo({ top: document.documentElement.scrollHeight, behavior: "instant" });
}

function atBottom() {
  const page = document.documentElement;
  return page.scrollHeight - page.scrollTop - page.clientHeight < 80; // a few lines: whoever scrolled up stays there
}

function finish(turn, prompt) {
  if (!turn.answer.text) turn.text.textContent = "(an empty answer)";
  turn.meta.replaceChildren(
    make("span", {}, finishedLine(turn.answer)),
    make("button", { type: "button", class: "link", onclick: () => raceThis(prompt) }, "Race this prompt"),
  );
  announce(`Answer complete: ${turn.answer.text}`);
}

function interrupt(turn, prompt, error) {
  if (error.name === "AbortError") {
    turn.meta.textContent = `${runningLine(turn.answer)} · stopped by you`;
    announce("Stopped.");
    return;
  }
  if (!turn.answer.tokens.length) turn.text.remove();
  turn.element.append(problemBox(error, () => retry(turn, prompt)));
}

/** Asks again for an answer that failed. Later turns stay where they are, so only the last one can be replaced. */
function retry(turn, prompt) {
  if (running) return;
  if (turns.at(-1) === turn) {
    turns.pop();
    turn.element.remove();
    reply(prompt);
  } else {
    send(prompt);
  }
  byId("prompt").focus();
}

function setRunning(control) {
  running = control;
  byId("send").hidden = Boolean(control);
  byId("stop").hidden = !control;
  return control;
}

function stop() {
  running?.abort();
}

function clear() {
  stop();
  hideTip();
  turns.length = 0;
  byId("log").replaceChildren();
  showWhatFits();
  announce("New conversation.");
  byId("prompt").focus();
}

function exportAs(ending) {
  if (ending === "json") download(asJson(turns, modelName, currentSettings()), "application/json", ending);
  else download(asMarkdown(turns, modelName), "text/markdown", ending);
}
