// Two answers to one question, with drafts and without: whether they are the same text, and which
// was done first.

import { html } from "/page/parts.js";

const AROUND = 24; // characters shown of where two texts part

/** The first place at which two texts differ; -1: nowhere. */
export function difference(one, other) {
  if (one === other) return -1;
  let at = 0;
  while (at < one.length && one[at] === other[at]) at += 1;
  return at;
}

/** What is said of both once they have ended. */
export function verdict(drafting, plain, seed) {
  if (drafting.failed || plain.failed) return ["Not compared: one of the answers failed."];
  if (drafting.ending === "stopped") return ["Not compared: the answers were stopped."];
  const at = difference(drafting.text, plain.text);
  return [at < 0 ? same(drafting.text) : differs(drafting.text, plain.text, at), " ",
    times(drafting.seconds, plain.seconds), ` Both were written at the same time, with ${seed}.`];
}

function same(text) {
  return html("strong", { class: "same" }, `✓ Identical, all ${text.length} characters.`);
}

function differs(one, other, at) {
  const shown = (text) => [text.slice(Math.max(at - AROUND, 0), at),
    html("mark", {}, text.slice(at, at + AROUND) || "(its end)")];
  return html("span", {},
    html("strong", { class: "different" }, `✗ Different from character ${at + 1} on:`),
    " with drafts “", ...shown(one), "”, without “", ...shown(other), "”.");
}

function times(drafting, plain) {
  const [first, last] = [Math.min(drafting, plain), Math.max(drafting, plain)];
  const who = drafting <= plain ? "With drafts" : "Without drafts";
  const factor = first > 0 ? `, ${(last / first).toFixed(2)} times as fast` : "";
  return `${who} it was done ${(last - first).toFixed(2)} s earlier: ` +
    `${first.toFixed(2)} s, not ${last.toFixed(2)} s${factor}.`;
}
