/** One side of a race: a text that grows, a bar, a speed. */

import { Answer } from "./answer.js";
import { make } from "./dom.js";
import { finishedLine, runningLine } from "./figures.js";
import { fixed } from "./numbers.js";
import { addTokens, tokenText } from "./tokens.js";

export class Lane {
  constructor(element, title, hint) {
    this.element = element;
    this.title = title;
    this.hint = hint;
    this.clear();
  }

  clear() {
    this.answer = new Answer();
    this.rate = make("span", { class: "rate figures" });
    this.bar = make("div");
    this.text = tokenText(this.title);
    this.meta = make("p", { class: "meta quiet figures" }, this.hint);
    this.element.classList.add("fresh");
    this.element.replaceChildren(
      make("header", {}, make("h3", {}, this.title), this.rate),
      make("div", { class: "track" }, this.bar),
      this.text,
      this.meta,
    );
  }

  set isRunning(is) {
    this.element.classList.toggle("running", is);
    if (!is) return;
    this.element.classList.remove("fresh");
    this.meta.textContent = "waiting for the first token";
  }

  grow(fresh, mostTokens) {
    this.add(fresh);
    this.progress(this.answer.tokens.length / mostTokens);
    this.meta.textContent = runningLine(this.answer);
    if (this.answer.rate) this.rate.textContent = `${fixed(this.answer.rate)} tok/s`;
  }

  /** Keeps the end of a long text in sight. */
  add(tokens) {
    addTokens(this.text, tokens);
    this.text.scrollTop = this.text.scrollHeight;
  }

  progress(share) {
    this.bar.style.setProperty("width", `${Math.min(share, 1) * 100}%`);
  }

  finish() {
    this.progress(1);
    this.meta.textContent = `${fixed(this.answer.seconds)} s · ${finishedLine(this.answer)}`;
  }

  /** Marks the token where the text differs from the other lane's. */
  mark(index) {
    const token = this.text.children[index];
    token?.classList.add("differs");
    token?.scrollIntoView({ block: "nearest" });
  }

  /** Shows the tokens that had arrived `ms` after the first one. Returns whether there are more. */
  showUntil(ms) {
    const first = this.answer.tokens[0]?.at ?? 0;
    const arrived = this.answer.tokens.filter((token) => token.at - first <= ms);
    this.add(arrived.slice(this.text.children.length));
    this.progress(arrived.length / this.answer.tokens.length);
    return arrived.length < this.answer.tokens.length;
  }
}
