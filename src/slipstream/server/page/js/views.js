/** Chat, race and (on narrow screens) speed: the address says which is shown. */

import { byId } from "./dom.js";
import { hideTip } from "./tokens.js";

const VIEWS = ["chat", "race", "speed"];

export function startViews() {
  window.addEventListener("hashchange", showView);
  matchMedia("(min-width: 1080px)").addEventListener("change", showView);
  showView();
}

/** Shows a view at once. */
export function go(view) {
  location.hash = view;
  showView();
}

function showView() {
  const asked = location.hash.slice(1);
  if (asked && !VIEWS.includes(asked)) return; // a place inside a view, such as the message box
  const isWide = matchMedia("(min-width: 1080px)").matches; // speed is always shown there
  const view = VIEWS.includes(asked) && !(isWide && asked === "speed") ? asked : "chat";
  document.documentElement.dataset.view = view;
  byId("chat").hidden = view !== "chat";
  byId("race").hidden = view !== "race";
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  hideTip();
  window.scrollTo({ top: 0, behavior: "instant" });
}
