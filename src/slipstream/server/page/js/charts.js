/** Charts as SVG. Each has a text that says what it shows. */

import { draw } from "./dom.js";
import { fixed, percent } from "./numbers.js";

const WIDTH = 300;
const HEIGHT = 76;
const LEFT = 26; // room for the scale's numbers

/** Lines over time. `series`: [{points: [[time, value], …], dashed}]; a value of null is a gap. */
export function lineChart(series, { label, seconds = 120, least = 1 }) {
  const values = series.flatMap(({ points }) => points.map(([, value]) => value ?? 0));
  const top = niceTop(Math.max(least, ...values));
  const end = Math.max(...series.flatMap(({ points }) => points.map(([time]) => time)), 0);
  const x = (time) => LEFT + (WIDTH - LEFT) * (1 - (end - time) / seconds);
  const y = (value) => HEIGHT * (1 - value / top);
  return draw(
    "svg",
    { viewBox: `0 -8 ${WIDTH} ${HEIGHT + 26}`, role: "img", "aria-label": label },
    ...[0, top / 2, top].flatMap((value) => gridLine(y(value), value)),
    ...lines(series, x, y, end - seconds),
    draw("text", { x: LEFT, y: HEIGHT + 15 }, `${seconds / 60} min ago`),
    draw("text", { x: WIDTH, y: HEIGHT + 15, "text-anchor": "end" }, "now"),
  );
}

function gridLine(y, value) {
  const text = value >= 10 || Number.isInteger(value) ? String(Math.round(value)) : fixed(value);
  return [
    draw("line", { class: "axis", x1: LEFT, x2: WIDTH, y1: y, y2: y }),
    draw("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, text),
  ];
}

/** The end of a scale: a number whose half is short, too. */
function niceTop(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.6, 2, 3, 4, 6, 8, 10].map((step) => step * power).find((top) => top >= value) ?? 10 * power;
}

function lines(series, x, y, from) {
  const kind = (dashed) => (dashed ? "line dashed" : "line");
  return series.map(({ points, dashed }) => draw("path", { class: kind(dashed), d: path(points, x, y, from) }));
}

function path(points, x, y, from) {
  let move = true;
  let found = "";
  for (const [time, value] of points) {
    if (time < from) continue;
    if (value != null) found += `${move ? "M" : "L"}${x(time).toFixed(1)} ${y(value).toFixed(1)}`;
    move = value == null;
  }
  return found;
}

/** The same lines without a scale, for a row of text. */
export function sparkLine(series) {
  const all = series.flatMap(({ points }) => points);
  const end = Math.max(...all.map(([time]) => time), 0);
  const seconds = Math.min(60, end - (all[0]?.[0] ?? 0) || 1);
  const top = Math.max(1, ...all.map(([, value]) => value ?? 0));
  const [x, y] = [(time) => 96 * (1 - (end - time) / seconds), (value) => 19 - 18 * (value / top)];
  return draw("svg", { viewBox: "0 0 96 20", "aria-hidden": "true" }, ...lines(series, x, y, end - seconds));
}

const SHOWN_POSITIONS = 12; // what fits the panel; later ones are rarely drafted
const FEW = 20; // drafted so rarely that its share says little

/** Columns: the share of drafted tokens that were accepted, by their position in the draft. */
export function positionChart(accepted, drafted) {
  const shares = drafted.slice(0, SHOWN_POSITIONS).map((count, at) => (count ? accepted[at] / count : 0));
  const step = WIDTH / Math.max(shares.length, 6);
  return draw(
    "svg",
    { viewBox: `0 -14 ${WIDTH} ${HEIGHT + 32}`, role: "img", "aria-label": describe(shares, drafted) },
    ...shares.flatMap((share, at) => column(at, share, drafted[at], step)),
  );
}

function column(at, share, count, step) {
  const [x, width] = [at * step + step * 0.15, step * 0.7];
  const height = HEIGHT * share;
  const middle = x + width / 2;
  return [
    draw("rect", { class: "column-room", x, y: 0, width, height: HEIGHT, rx: 2 }),
    draw("rect", { class: count < FEW ? "column few" : "column", x, y: HEIGHT - height, width, height, rx: 2 }),
    draw("text", { x: middle, y: HEIGHT + 15, "text-anchor": "middle" }, String(at + 1)),
    draw("text", { x: middle, y: -4, "text-anchor": "middle" }, String(Math.round(share * 100))),
  ];
}

function describe(shares, drafted) {
  const parts = shares.map((share, at) => `position ${at + 1}: ${percent(share)} of ${drafted[at]}`);
  return `Share of drafted tokens that were accepted. ${parts.join(", ")}.`;
}
