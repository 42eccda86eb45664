/** Light, dark, or as the system says. */

import { read, write } from "./store.js";

const THEMES = ["auto", "light", "dark"];
const NAMES = { auto: "as the system", light: "light", dark: "dark" };

let theme = THEMES.includes(read("theme")) ? read("theme") : "auto";
apply();

function apply() {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

/** Makes `button` go through the themes. */
export function themeButton(button) {
  const label = () => {
    button.textContent = `Theme: ${theme}`;
    button.title = `Colours: ${NAMES[theme]}`;
  };
  button.addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    write("theme", theme);
    apply();
    label();
  });
  label();
}
