// The pictures, drawn anew from what the server told last.

import { markOf } from "/page/marks.js";
import { html, many, reachable, svg } from "/page/parts.js";
import { SOURCES } from "/page/sources.js";

export const PHASES = ["schedule", "draft", "forward", "verify", "commit"];
const LEFT = 44; // for the numbers of the scale
const BOTTOM = 16;

/** A time in the unit that fits. */
export function time(seconds) {
  if (seconds >= 1) return `${round(seconds)} s`;
  if (seconds >= 1e-3) return `${round(seconds * 1e3)} ms`;
  return `${round(seconds * 1e6)} µs`;
}

function round(value) {
  return value >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(2)));
}

/** Values over time. points: [{at, value}] by rising time; a value holds since the point before,
 *  null is a gap. top: the scale's end, or nothing for the largest value. */
export function curve(element, points, now, label, top = largest(points)) {
  const { width, height } = begin(element);
  scale(element, width, height, label(top));
  const span = Math.max(now - (points[0]?.at ?? now), 30);
  const x = (at) => LEFT + (width - LEFT) * Math.max(1 - (now - at) / span, 0);
  const y = (value) => (height - BOTTOM) * (1 - value / top) + 1;
  let path = "";
  points.forEach(({ at, value }, i) => {
    if (value === null) return;
    const since = points[i - 1]?.at ?? at;
    const joined = i > 0 && points[i - 1].value !== null;
    path += `${joined ? "L" : "M"}${x(since)} ${y(value)}L${x(at)} ${y(value)}`;
  });
  element.append(
    svg("path", { class: "curve", d: path || "M0 0" }),
    svg("text", { x: LEFT, y: height - 2 }, `${Math.round(span)} s ago`),
    svg("text", { x: width, y: height - 2, "text-anchor": "end" }, "now"),
  );
  const last = points.at(-1)?.value ?? null;
  const known = element.getAttribute("aria-label").split(": ")[0];
  element.setAttribute("aria-label", `${known}: now ${last === null ? "nothing" : label(last)}`);
}

function largest(points) {
  return Math.max(...points.map((p) => p.value ?? 0), 1);
}

/** Where the tokens of an answer come from: a line for each source that has some. */
export function shares(list, tokens) {
  const all = Object.values(tokens).reduce((a, b) => a + b, 0);
  const seen = Object.keys(SOURCES).filter((name) => tokens[name] > 0);
  list.replaceChildren(...seen.map((name) => {
    const part = tokens[name] / all;
    const bar = svg("svg", { class: "part", viewBox: "0 0 1 1", preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("rect", { class: "track", width: 1, height: 1 }), svg("rect", { class: "bar", width: part, height: 1 }));
    const told = html("span", { class: "token", ...markOf(name) }, SOURCES[name].name);
    const count = `${many(tokens[name], "token")}, ${Math.round(100 * part)} %`;
    const about = html("small", { class: "about" }, SOURCES[name].about);
    return html("li", {}, told, bar, html("small", {}, count), about);
  }));
}

/** How often so many drafts were accepted at once. counts: {"0": 7, "3": 2}. */
export function histogram(element, counts) {
  if (isLookedAt(element)) return;
  const { width, height } = begin(element);
  const longest = Math.max(...Object.keys(counts).map(Number), 7);
  const all = Object.values(counts).reduce((a, b) => a + b, 0);
  const top = Math.max(...Object.values(counts), 1);
  scale(element, width, height, String(top));
  const each = (width - LEFT) / (longest + 1);
  const every = Math.ceil(24 / each); // labels that do not touch
  for (let length = 0; length <= longest; length++) {
    const count = counts[length] ?? 0;
    const tall = (height - BOTTOM) * (count / top);
    const x = LEFT + each * length;
    if (length % every === 0) {
      const at = { x: x + each / 2, y: height - 3, "text-anchor": "middle" };
      element.append(svg("text", at, String(length)));
    }
    if (count === 0) continue;
    const tip = `${length} accepted: ${count} times, ${round((100 * count) / all)} %`;
    reachable(element, svg("rect", {
      class: "bar", x: x + 1, width: Math.max(each - 2, 1), "aria-label": tip, role: "img",
      y: height - BOTTOM - tall, height: Math.max(tall, 1), "data-tip": tip,
    }));
  }
}

/** One bar for each step, its phases on top of each other. Returns how many fit. */
export function timeline(element, steps) {
  if (isLookedAt(element)) return null;
  const { width, height } = begin(element);
  const bars = steps.slice(-Math.floor((width - LEFT) / 4));
  const totals = bars.map((step) => PHASES.reduce((sum, phase) => sum + step.seconds[phase], 0));
  // A long prompt must not press all other bars flat: what is longer than this is cut, and marked.
  const middle = totals.toSorted((a, b) => a - b)[totals.length >> 1] ?? 0;
  const top = Math.min(Math.max(...totals, 1e-6), Math.max(4 * middle, 1e-6));
  scale(element, width, height, time(top));
  const each = Math.min((width - LEFT) / Math.max(bars.length, 1), 12);
  const base = height - BOTTOM;
  bars.forEach((step, i) => {
    const x = LEFT + each * i;
    const tip = told(step, totals[i]);
    const bar = svg("g", { "data-tip": tip, "aria-label": tip, role: "img", class: "step" });
    let y = base;
    for (const phase of PHASES) {
      const tall = Math.min((base * step.seconds[phase]) / top, y);
      y -= tall;
      bar.append(svg("rect", { class: phase, x, y, width: each - 1, height: tall }));
    }
    if (totals[i] > top * 1.001) {
      bar.append(svg("path", { class: "cut", d: `M${x - 1} 5l${each / 2 + 1} -5l${each / 2 + 1} 5z` }));
    }
    reachable(element, bar);
  });
  return bars.length;
}

function told(step, total) {
  const parts = PHASES.map((phase) => `${phase} ${time(step.seconds[phase])}`);
  const { answers, rows, drafted, accepted, tokens } = step;
  const drafts = `${accepted} of ${many(drafted, "draft")} accepted`;
  return `${time(total)}: ${parts.join(", ")}\n` +
    `${many(answers, "answer")}, ${many(rows, "row")}, ${drafts}, ${many(tokens, "token")}`;
}

/** The phases by name, each with its colour. */
export function phaseLegend(list) {
  for (const phase of PHASES) {
    list.append(html("li", {}, html("span", { class: `swatch ${phase}` }), phase));
  }
}

/** What somebody points at or reads must not be drawn away under them. */
function isLookedAt(element) {
  return element.childElementCount > 0 && element.matches(":hover, :focus-within");
}

function begin(element) {
  const { width, height } = element.getBoundingClientRect();
  element.setAttribute("viewBox", `0 0 ${width} ${height}`);
  element.replaceChildren();
  return { width, height };
}

function scale(element, width, height, top) {
  const base = height - BOTTOM + 0.5;
  element.append(
    svg("path", { class: "rule", d: `M${LEFT} ${base}H${width}M${LEFT} 1.5H${width}` }),
    svg("text", { x: LEFT - 5, y: base, "text-anchor": "end" }, "0"),
    svg("text", { x: LEFT - 5, y: 11, "text-anchor": "end" }, top),
  );
}
