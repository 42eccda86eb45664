/** One line about an answer. */

import { counted, fixed, percent } from "./numbers.js";

export function runningLine(answer) {
  const rate = answer.rate ? `, ${fixed(answer.rate)} tokens per second` : "";
  return `${counted(answer.tokens.length, "token")}${rate}`;
}

/** What was counted and measured. No estimate: the race measures the speed-up. */
export function finishedLine(answer) {
  const parts = [runningLine(answer)];
  const figures = answer.figures;
  if (figures?.drafted) {
    parts.push(`${figures.accepted} of ${figures.drafted} drafted accepted (${percent(figures.accepted / figures.drafted)})`);
    parts.push(`${fixed(figures.mean_accepted_length, 2)} tokens per step`);
  } else if (figures) {
    parts.push("nothing drafted");
  }
  if (answer.finish === "length") parts.push("stopped at the token limit");
  return parts.join(" · ");
}
