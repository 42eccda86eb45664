/** The race: the same prompt with and without speculation. */

import { ask } from "./answer.js";
import { firstDifference, tokenAt } from "./compare.js";
import { announce, byId, make } from "./dom.js";
import { Lane } from "./lane.js";
import { times } from "./numbers.js";
import { requestSettings } from "./settings.js";
import { problemBox } from "./trouble.js";
import { go } from "./views.js";

const PROMPT = "List the days of the week, then list them again in capitals.";

let lanes = null; // {speculation, plain}
let running = null; // AbortController of the race or of its replay

export function startRace() {
  lanes = {
    speculation: new Lane(byId("lane-speculation"), "With speculation", "A drafter guesses ahead, and the model checks all guesses in one step. Kept guesses are tinted."),
    plain: new Lane(byId("lane-plain"), "Plain decoding", "The model writes one token per step. With the same seed it writes the same text."),
  };
  byId("race-prompt").value = PROMPT;
  byId("race-form").addEventListener("submit", (event) => {
    event.preventDefault();
    race();
  });
  byId("race-stop").addEventListener("click", () => running?.abort());
}

/** Goes to the race with a prompt of the chat. */
export function raceWith(prompt) {
  byId("race-prompt").value = prompt;
  go("race");
  byId("race-start").focus();
}

async function race() {
  const prompt = byId("race-prompt").value.trim();
  if (!prompt || running) return;
  const control = setRunning(new AbortController());
  byId("verdict").hidden = true;
  lanes.speculation.clear();
  lanes.plain.clear();
  announce("The race has started.");
  try {
    const body = { messages: [{ role: "user", content: prompt }], ...requestSettings() };
    await run(lanes.speculation, { ...body, speculation: { ...body.speculation, enabled: true } }, control.signal);
    await run(lanes.plain, { ...body, speculation: { details: true, enabled: false } }, control.signal);
    judge(body.seed);
  } catch (error) {
    give(error);
  } finally {
    setRunning(null);
  }
}

async function run(lane, body, signal) {
  const expected = lanes.speculation.answer.finish ? lanes.speculation.answer.tokens.length : body.max_tokens;
  lane.isRunning = true;
  try {
    await ask(body, lane.answer, (fresh) => lane.grow(fresh, expected), signal);
    lane.finish();
  } finally {
    lane.isRunning = false;
  }
}

/** Compares the texts, and then the speeds. */
function judge(seed) {
  const [one, other] = [lanes.speculation.answer, lanes.plain.answer];
  const at = firstDifference(one.text, other.text);
  if (at >= 0) {
    lanes.speculation.mark(tokenAt(one.tokens, at));
    lanes.plain.mark(tokenAt(other.tokens, at));
  }
  const title = at < 0 ? `Same text. ${faster(one.rate, other.rate)}` : `The texts differ from character ${at + 1} on.`;
  const advice =
    at < 0
      ? `${one.text.length} characters compared, seed ${seed}.`
      : "Two tokens were equally likely, or something is wrong. slipstream audit tells which.";
  const replay = make("button", { type: "button", class: "soft", onclick: replaySideBySide }, "Replay side by side");
  showVerdict(at >= 0, make("strong", {}, title), make("span", { class: "quiet" }, advice), replay);
}

function faster(one, other) {
  if (!one || !other) return "The answer is too short to measure a speed.";
  const ratio = one / other;
  if (ratio >= 1.03) return `Speculation was ${times(ratio)} as fast.`;
  if (ratio > 0.97) return "Both were equally fast."; // less than 3 % is noise
  return `Plain decoding was faster this time: speculation reached ${times(ratio)} of its speed.`;
}

function showVerdict(isBad, ...content) {
  byId("verdict").classList.toggle("bad", isBad);
  byId("verdict").replaceChildren(...content);
  byId("verdict").hidden = false;
}

function give(error) {
  if (error.name === "AbortError") showVerdict(false, make("span", {}, "Race stopped."));
  else showVerdict(false, problemBox(error, race));
}

/** Both answers again, at the pace at which they were measured. */
async function replaySideBySide() {
  if (running) return;
  const control = setRunning(new AbortController());
  const started = performance.now();
  for (const lane of Object.values(lanes)) lane.text.replaceChildren();
  let left = true;
  while (left) {
    const now = control.signal.aborted ? Infinity : await nextFrame();
    left = Object.values(lanes).map((lane) => lane.showUntil(now - started)).some(Boolean);
  }
  setRunning(null);
}

const nextFrame = () => new Promise((resolve) => requestAnimationFrame(resolve));

function setRunning(control) {
  running = control;
  byId("race-start").hidden = Boolean(control);
  byId("race-stop").hidden = !control;
  return control;
}
