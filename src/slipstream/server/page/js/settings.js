/** Settings, and the dialog that changes them. The API key stays in this tab; the rest is remembered. */

import { byId, make } from "./dom.js";
import { read, write } from "./store.js";

const PLAIN = "none"; // in the list of drafters: no speculation
const session = () => sessionStorage;
// 0.3: sensible text from small models, and not the same loop again and again, which 0 tends to give
const DEFAULTS = { temperature: 0.3, seed: "", maxTokens: null, drafter: "", maxDraft: "" };

const USUAL_TOKENS = 512; // enough for most answers, and soon over if a small model repeats itself

let settings = { ...DEFAULTS, ...read("settings") };
let key = read("key", session) ?? "";
let about = { drafter: null, drafters: [], max_tokens: 4096 };
let onKey = () => {};

export const apiKey = () => key;
export const currentSettings = () => ({ ...settings, maxTokens: settings.maxTokens ?? Math.min(USUAL_TOKENS, about.max_tokens) });

/** What the server says about its model: which drafters can be asked for, and how many tokens. */
export function describeServer(described) {
  about = described;
}

/** The fields of a request that the settings decide. An empty seed is a new one every time. */
export function requestSettings() {
  const { temperature, maxTokens, seed, drafter, maxDraft } = currentSettings();
  const speculation = { details: true };
  if (drafter === PLAIN) speculation.enabled = false;
  else if (drafter) speculation.drafter = drafter;
  if (maxDraft !== "") speculation.max_draft = maxDraft;
  return { temperature, max_tokens: maxTokens, seed: seed === "" ? newSeed() : seed, speculation };
}

function newSeed() {
  return crypto.getRandomValues(new Uint32Array(1))[0] >>> 1;
}

const FIELDS = [
  { name: "temperature", label: "Temperature", hint: "0 always takes the likeliest token.", min: 0, max: 2, step: 0.05 },
  { name: "maxTokens", label: "Most tokens", hint: "The longest answer.", min: 1, step: 1, whole: true },
  { name: "seed", label: "Seed", hint: "Same seed, same text. Empty: a new one each time.", min: 0, step: 1, whole: true, optional: true },
  { name: "maxDraft", label: "Longest draft", hint: "Empty: the policy decides.", min: 0, max: 64, step: 1, whole: true, optional: true },
];

function numberField({ name, label, hint, min, max, step, optional }) {
  const most = name === "maxTokens" ? about.max_tokens : max;
  const input = make("input", {
    id: `set-${name}`, name, type: "number", min, max: most, step, value: String(currentSettings()[name]),
    required: !optional, "aria-describedby": `hint-${name}`,
  });
  return field(`set-${name}`, label, input, make("p", { class: "quiet", id: `hint-${name}` }, hint));
}

function field(id, label, ...inside) {
  return make("div", { class: "field" }, make("label", { for: id }, label), ...inside);
}

function drafterField() {
  const usual = about.drafter ? `As the server does (${about.drafter})` : "As the server does";
  const names = about.drafters.filter((name) => name !== "grammar"); // it only drafts what a schema forces
  const choices = [["", usual], ...names.map((name) => [name, name]), [PLAIN, "None: plain decoding"]];
  const options = choices.map(([value, text]) => make("option", { value, selected: value === settings.drafter }, text));
  const found = field("set-drafter", "Drafter", make("select", { id: "set-drafter", name: "drafter" }, ...options));
  found.classList.add("whole");
  return found;
}

function keyField() {
  const input = make("input", {
    id: "set-key", name: "key", type: "password", value: key, autocomplete: "off", spellcheck: "false", "aria-describedby": "hint-key",
  });
  const hint = make("p", { class: "quiet", id: "hint-key" }, "Only if the server asks for one. Kept until you close this tab.");
  const found = field("set-key", "API key", input, hint);
  found.classList.add("whole");
  return found;
}

/** Opens the dialog, with the field named `focus` first. */
export function openSettings(focus = "set-temperature") {
  const dialog = byId("settings");
  const form = make(
    "form",
    { onsubmit: (event) => { event.preventDefault(); keep(new FormData(form)); dialog.close(); } },
    ...FIELDS.map(numberField),
    drafterField(),
    keyField(),
    make(
      "div",
      { class: "actions" },
      make("button", { type: "button", class: "soft", onclick: () => dialog.close() }, "Cancel"),
      make("button", { type: "submit", class: "main" }, "Save"),
    ),
  );
  dialog.replaceChildren(make("h2", { id: "settings-title" }, "Settings"), form);
  dialog.showModal();
  byId(focus).focus();
}

function keep(data) {
  for (const { name } of FIELDS) settings[name] = data.get(name) === "" ? "" : Number(data.get(name));
  settings.drafter = data.get("drafter");
  write("settings", settings);
  if (data.get("key").trim() === key) return;
  key = data.get("key").trim();
  write("key", key, session);
  onKey();
}

/** Calls `act` when the API key has changed. */
export function whenKeyChanges(act) {
  onKey = act;
}
