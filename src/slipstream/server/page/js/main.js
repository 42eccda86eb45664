/** Puts the page together. */

import { model } from "./api.js";
import { nameModel, startChat } from "./chat.js";
import { byId } from "./dom.js";
import { raceWith, startRace } from "./race.js";
import { describeServer, openSettings, whenKeyChanges } from "./settings.js";
import { again, startSpeed } from "./speed.js";
import { themeButton } from "./theme.js";
import { startViews } from "./views.js";

const SAID = { 401: "an API key is needed (Settings)", unreachable: "no connection to the server" };
let isKnown = false; // whether the line under the name says what the server runs

async function describe() {
  const found = await model();
  const { backend, device, dtype, drafter } = found.slipstream;
  byId("model").textContent = `${found.id} on ${device} (${backend}, ${dtype}), drafter: ${drafter ?? "none"}`;
  byId("model").title = byId("model").textContent;
  nameModel(found.id);
  describeServer(found.slipstream);
}

async function connected(problem) {
  if (problem) {
    isKnown = false;
    byId("model").textContent = SAID[problem.kind] ?? "the server does not give its figures";
  } else if (!isKnown) {
    isKnown = true;
    await describe().catch(connected);
  }
}

themeButton(byId("theme"));
byId("open-settings").addEventListener("click", () => openSettings());
whenKeyChanges(again);
startViews();
startChat(raceWith);
startRace();
startSpeed(connected);
