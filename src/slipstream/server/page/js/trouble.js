/** A problem, shown where the answer would be: what happened, what to do, and a button that does it. */

import { make } from "./dom.js";
import { explain } from "./problems.js";
import { openSettings } from "./settings.js";

/** `retry` may be missing. */
export function problemBox(problem, retry) {
  const { title, advice, action } = explain(problem);
  const buttons = [];
  if (action === "key") buttons.push(button("Enter the key", () => openSettings("set-key")));
  if (action === "settings") buttons.push(button("Settings", () => openSettings()));
  if (retry) buttons.push(button("Try again", retry));
  return make(
    "div",
    { class: "problem", role: "alert" },
    make("strong", {}, title),
    make("p", {}, advice),
    make("div", { class: "actions" }, ...buttons),
  );
}

const button = (text, onclick) => make("button", { type: "button", class: "soft", onclick }, text);
