/** The speed panel: asks the server for its figures and draws them. */

import { stats } from "./api.js";
import { lineChart, positionChart, sparkLine } from "./charts.js";
import { byId, make } from "./dom.js";
import { fixed, percent, times, whole } from "./numbers.js";
import { Problem } from "./problems.js";

const EVERY_MS = 1000; // the server makes one sample a second
const AFTER_FAILURE_MS = 4000;
const NOW_SAMPLES = 3; // the server's "now" is the last three seconds

let timer = null;
let onConnection = () => {};

/** Shows figures while the page is visible. `connected` is called with whether the server answered. */
export function startSpeed(connected) {
  onConnection = connected;
  document.addEventListener("visibilitychange", again);
  again();
}

/** Asks now, and from then on every second. */
export function again() {
  clearTimeout(timer);
  if (!document.hidden) poll();
}

async function poll() {
  let wait = EVERY_MS;
  try {
    const now = await stats();
    onConnection(null);
    show(now);
  } catch (problem) {
    if (!(problem instanceof Problem)) throw problem;
    wait = AFTER_FAILURE_MS;
    byId("speed-streams").textContent = "no figures now";
    byId("pulse-text").textContent = "no figures now";
    onConnection(problem);
  }
  clearTimeout(timer);
  timer = setTimeout(again, wait);
}

function show(now) {
  showNow(now);
  showCharts(now);
  if (!now.rounds) return;
  byId("chart-positions").replaceChildren(positions(now));
  byId("policy").textContent = `${now.policy}.`;
  showTotals(now);
}

function showNow(now) {
  const estimate = now.plain_tokens_per_second;
  byId("speed-now").textContent = fixed(now.tokens_per_second);
  const against = estimate ? `plain decoding: about ${fixed(estimate)}` : "plain decoding: not measured yet";
  const ratio = isSteady(now) && estimate ? ` · ${times(now.tokens_per_second / estimate)}` : "";
  byId("speed-against").textContent = `${against}${ratio}`;
  byId("speed-streams").textContent = now.streams.active ? answering(now.streams) : "idle";
  byId("pulse-text").textContent = `${fixed(now.tokens_per_second)} tok/s, plain ${estimate ? fixed(estimate) : "–"}${ratio}`;
}

/** Whether answers were generated all the time that "now" means. If not, the speed can't be compared. */
function isSteady(now) {
  const recent = now.history.slice(-NOW_SAMPLES);
  return recent.length === NOW_SAMPLES && recent.every((sample) => sample.active > 0);
}

function answering({ active, queued }) {
  const waiting = queued ? `, ${queued} waiting` : "";
  return `${active} answering${waiting}`;
}

function showCharts(now) {
  const over = (name) => now.history.map((sample) => [sample.time, sample[name]]);
  const series = [{ points: over("tokens_per_second") }, { points: over("plain_tokens_per_second"), dashed: true }];
  const label = `Tokens per second, last 2 minutes. Now ${fixed(now.tokens_per_second)}, plain decoding about ${fixed(now.plain_tokens_per_second ?? 0)}.`;
  byId("chart-speed").replaceChildren(lineChart(series, { label, least: 5 }));
  byId("pulse-line").replaceChildren(sparkLine(series));
  byId("chart-drafts").replaceChildren(draftChart(now));
}

/** Seconds in which nothing was generated are gaps. */
function draftChart(now) {
  const over = (name) => now.history.map((sample) => [sample.time, sample.mean_accepted_length ? sample[name] : null]);
  const series = [{ points: over("draft_length") }, { points: over("mean_accepted_length"), dashed: true }];
  const label = `Draft length, last 2 minutes. Recent mean: ${fixed(now.draft_length)} tokens per step.`;
  return lineChart(series, { label, least: 2 });
}

function positions(now) {
  if (now.drafted) return positionChart(now.accepted_by_position, now.drafted_by_position);
  return make("p", { class: "quiet nothing" }, "Nothing was drafted yet.");
}

function showTotals(now) {
  const rows = [
    ["Tokens", whole(now.tokens)],
    ["Steps", whole(now.rounds)],
    ["Tokens per step", fixed(now.mean_accepted_length, 2)],
    ["Drafted", whole(now.drafted)],
    ["Accepted", now.drafted ? `${whole(now.accepted)} (${percent(now.accepted / now.drafted)})` : "0"],
  ];
  if (now.speedup_estimate) rows.push(["Speed-up, estimated", times(now.speedup_estimate)]);
  byId("totals").replaceChildren(...rows.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
}
