// What an answer is asked for with: checked here as the server checks it, kept in the browser.

import { html } from "/page/parts.js";

const KEY = "foresay.settings";
const MOST = Number.MAX_SAFE_INTEGER;

const whole = (from, to, what) => ({ step: 1, what,
  valid: (n) => Number.isInteger(n) && n >= from && n <= to });
const number = (valid, step, what) => ({ step, what, valid });

/** Each number by the name that the server has for it: what it is called and is by default
 *  (null: the server chooses), and what is valid. */
export const FIELDS = {
  temperature: { label: "Temperature", usual: 0, about: "0: always the likeliest token",
    ...number((n) => n === 0 || (n >= 0.001 && n <= 2), 0.1, "0, or a number from 0.001 to 2") },
  max_tokens: { label: "Max tokens", usual: 512, about: "the answer ends after so many",
    ...whole(1, 2 ** 31 - 1, `a whole number from 1 to ${2 ** 31 - 1}`) },
  top_p: { label: "Top p", usual: null, about: "the likeliest tokens that together reach it",
    ...number((n) => n > 0 && n <= 1, 0.05, "a number above 0, at most 1") },
  top_k: { label: "Top k", usual: null, about: "the k likeliest tokens; 0: all",
    ...whole(0, 2 ** 31 - 2, `a whole number from 0 to ${2 ** 31 - 2}`) },
  min_p: { label: "Min p", usual: null, about: "tokens at least so likely beside the likeliest",
    ...number((n) => n >= 0 && n <= 1, 0.05, "a number from 0 to 1") },
  repetition_penalty: { label: "Repetition penalty", usual: null, about: "1: none",
    ...number((n) => n >= 1e-6 && n <= 1e6, 0.05, "a number from 0.000001 to 1000000") },
  seed: { label: "Seed", usual: null, about: "the same seed gives the same answer; empty: a new one",
    ...whole(0, MOST, `a whole number from 0 to ${MOST}`) },
};

/** What is wrong with the text of a field; null: nothing. */
export function wrong(name, text) {
  const { label, usual, valid, what } = FIELDS[name];
  if (text.trim() === "") return usual === null ? null : `${label} is empty; expected ${what}.`;
  return valid(Number(text)) ? null : `${label} is ${text.trim().slice(0, 40)}; expected ${what}.`;
}

/** The settings, and the dialog that changes them. `changed` is called with each valid change. */
export class Settings {
  constructor(dialog, changed) {
    this.dialog = dialog;
    this.changed = changed;
    this.values = { system: "", markdown: true };
    for (const [name, { usual }] of Object.entries(FIELDS)) this.values[name] = usual;
    this.load();
    this.form = dialog.querySelector("form");
    this.boxes = Object.fromEntries(Object.keys(FIELDS).map((name) => [name, this.box(name)]));
    dialog.addEventListener("close", () => this.fill()); // what was not taken over is gone
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.take();
    });
    dialog.querySelector("[data-do=usual]").addEventListener("click", () => {
      for (const [name, { usual }] of Object.entries(FIELDS)) this.boxes[name].value = usual ?? "";
      this.check();
    });
    this.fill();
  }

  /** The fields of a request. */
  get options() {
    const numbers = Object.keys(FIELDS).map((name) => [name, this.values[name]]);
    return Object.fromEntries(numbers.filter(([, value]) => value !== null));
  }

  /** The messages that come before all others. */
  get before() {
    return this.values.system === "" ? [] : [{ role: "system", content: this.values.system }];
  }

  box(name) {
    const { label, about, step, usual } = FIELDS[name];
    const input = html("input", {
      id: name, type: "text", inputmode: step === 1 ? "numeric" : "decimal", autocomplete: "off",
      placeholder: name === "seed" ? "a new one" : "server's default", "aria-describedby": `${name}-about ${name}-wrong`,
    });
    const error = html("p", { id: `${name}-wrong`, class: "wrong", role: "alert" });
    this.form.querySelector(".fields").append(html("div", {},
      html("label", { for: name }, label), input,
      html("p", { id: `${name}-about`, class: "small" }, about), error));
    input.addEventListener("input", () => this.check(name));
    return input;
  }

  /** Show what is wrong; returns the first box with a wrong value. */
  check(only = null) {
    let first = null;
    for (const [name, box] of Object.entries(this.boxes)) {
      if (only !== null && name !== only) continue;
      const sentence = wrong(name, box.value);
      document.getElementById(`${name}-wrong`).textContent = sentence ?? "";
      box.setAttribute("aria-invalid", String(sentence !== null));
      if (sentence !== null) first ??= box;
    }
    return first;
  }

  take() {
    const first = this.check();
    if (first) return first.focus();
    for (const [name, box] of Object.entries(this.boxes)) {
      this.values[name] = box.value.trim() === "" ? null : Number(box.value);
    }
    this.values.system = this.form.querySelector("#system").value.trim();
    this.values.markdown = this.form.querySelector("#markdown").checked;
    try {
      localStorage.setItem(KEY, JSON.stringify(this.values));
    } catch {
      // A browser that keeps nothing: they hold until the page is left.
    }
    this.dialog.close();
    this.changed();
  }

  fill() {
    for (const [name, box] of Object.entries(this.boxes)) box.value = this.values[name] ?? "";
    this.form.querySelector("#system").value = this.values.system;
    this.form.querySelector("#markdown").checked = this.values.markdown;
    this.check();
  }

  /** What is kept in the browser, as far as it is valid: somebody may have changed it. */
  load() {
    const kept = read(KEY) ?? {};
    for (const [name, value] of Object.entries(kept)) {
      if (!(name in FIELDS) || wrong(name, String(value ?? "")) !== null) continue;
      this.values[name] = value === null ? null : Number(value);
    }
    if (typeof kept.system === "string") this.values.system = kept.system;
    if (typeof kept.markdown === "boolean") this.values.markdown = kept.markdown;
  }
}

/** JSON that the browser keeps; null if there is none. */
export function read(key) {
  try {
    return JSON.parse(localStorage.getItem(key));
  } catch {
    return null;
  }
}
