/** Tokens on the page. One place to tab to per text; arrow keys go from token to token, and a tip tells about it. */

import { announce, byId, make } from "./dom.js";
import { percent } from "./numbers.js";

const shown = new WeakMap(); // element -> token
let pointedAt = null; // the element that the tip is about
const MOVES = { ArrowRight: 1, ArrowLeft: -1 };

document.addEventListener("scroll", () => pointedAt && place(byId("token-tip"), pointedAt), { passive: true });
document.addEventListener("pointerdown", (event) => shown.has(event.target) || hideTip());

/** A place for tokens, to be filled with `addTokens`. */
export function tokenText(label) {
  const text = make("div", { class: "text", role: "group", tabindex: "0", "aria-label": label, "aria-describedby": "token-help" });
  text.addEventListener("pointerover", (event) => shown.has(event.target) && showTip(event.target));
  text.addEventListener("pointerleave", hideTip);
  text.addEventListener("focusin", (event) => shown.has(event.target) && look(event.target));
  text.addEventListener("focusout", hideTip);
  text.addEventListener("click", (event) => shown.has(event.target) && showTip(event.target));
  text.addEventListener("keydown", (event) => move(event, text));
  return text;
}

export function addTokens(text, tokens) {
  text.append(...tokens.map(tokenElement));
}

function tokenElement(token) {
  const element = make("span", { class: token.drafter ? "token drafted" : "token" }, token.text);
  shown.set(element, token);
  return element;
}

function move(event, text) {
  if (event.key === "Escape") return hideTip();
  if (!(event.key in MOVES)) return undefined;
  event.preventDefault();
  const step = MOVES[event.key];
  const current = shown.has(document.activeElement) ? document.activeElement : null;
  let next = current ? neighbour(current, step) : step > 0 ? text.firstElementChild : text.lastElementChild;
  while (next && !next.textContent) next = neighbour(next, step); // half a character has no text of its own
  if (!next) return undefined;
  next.tabIndex = -1; // focusable from here on, without a place in the tab order
  return next.focus();
}

const neighbour = (element, step) => (step > 0 ? element.nextElementSibling : element.previousElementSibling);

function look(element) {
  showTip(element);
  announce(`${spoken(shown.get(element).text)}: ${details(shown.get(element))}`);
}

function spoken(text) {
  return text.trim() ? text : text.replace(/\n/g, "new line ").replace(/ /g, "space ").trim();
}

/** Who drafted the token, and how sure it was. */
export function details(token) {
  if (!token.drafter) return "written by the model itself";
  const chance = token.chance == null ? "" : `, which gave it a chance of ${percent(token.chance)}`;
  return `drafted by ${token.drafter}${chance}; accepted by the model`;
}

function showTip(element) {
  const tip = byId("token-tip");
  const token = shown.get(element);
  const name = JSON.stringify(token.text).slice(1, -1);
  tip.textContent = `“${name}” – ${details(token)}`;
  tip.hidden = false;
  pointedAt = element;
  place(tip, element);
}

/** Above the token, or below where there is no room. */
function place(tip, element) {
  const at = element.getClientRects()[0] ?? element.getBoundingClientRect();
  const size = tip.getBoundingClientRect();
  const left = Math.min(Math.max(8, at.left), window.innerWidth - size.width - 8);
  const top = at.top > size.height + 64 ? at.top - size.height - 6 : at.bottom + 6;
  tip.style.setProperty("left", `${left}px`);
  tip.style.setProperty("top", `${top}px`);
}

export function hideTip() {
  pointedAt = null;
  byId("token-tip").hidden = true;
}
