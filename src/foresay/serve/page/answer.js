// One answer on the page, written while it comes, and what is known of how it was written.

import { Markdown } from "/page/markdown.js";
import { AsWritten, Marks, markOf } from "/page/marks.js";
import { html, many } from "/page/parts.js";
import { SOURCES } from "/page/sources.js";

export class Answer {
  /** title     of its column, if there are two
   *  markdown  whether Markdown is shown as what it means
   *  shown     called with every change that can be seen, and told whether it is the last */
  constructor({ title = "", markdown = true, shown = () => {} } = {}) {
    this.text = "";
    this.tokens = this.steps = this.drafted = this.accepted = this.seconds = 0;
    this.sources = {}; // tokens of each
    this.begun = performance.now();
    this.ending = "";
    this.failed = false;
    this.shown = shown;
    this.marks = new Marks();
    this.unseen = ""; // text that is not on the page yet
    this.frame = null;
    const named = title === "" ? "Answer" : `Answer, ${title.toLowerCase()}`;
    this.body = html("div", { class: "text", "data-rove": "", role: "group", "aria-label": named });
    this.facts = html("p", { class: "small facts" }, "…");
    this.legend = html("p", { class: "small legend" });
    this.article = html("article", { class: "answer", "aria-busy": "true" });
    if (title !== "") this.article.append(html("h2", {}, title));
    this.article.append(this.body, this.facts, this.legend);
    const nodes = (from, to) => this.marks.nodes(from, to);
    this.writer = new (markdown ? Markdown : AsWritten)(this.body, nodes);
  }

  /** A chunk of the server's stream. */
  add(chunk) {
    this.seconds = (performance.now() - this.begun) / 1000;
    const { delta, finish_reason: reason } = chunk.choices[0] ?? {};
    const text = delta?.content ?? "";
    if (reason === "length") this.ending = "as long as allowed";
    if (chunk.foresay) this.count(chunk.foresay, text);
    else this.marks.add(text);
    this.tokens = chunk.usage?.completion_tokens ?? this.tokens;
    this.text += text;
    this.unseen += text;
    this.frame ??= requestAnimationFrame(() => this.show());
  }

  count({ words, sources, drafted, accepted }, text) {
    // A server that hides its traffic tells several steps at once; each adds one token of the
    // model's own to what was accepted.
    const steps = Math.max(words.length - accepted, 1);
    this.steps += steps;
    this.tokens += words.length;
    this.drafted += drafted;
    this.accepted += accepted;
    const of = steps === 1 ? `step ${this.steps}` : `steps to ${this.steps}`;
    const rest = `${of}: ${accepted} of ${many(drafted, "draft")} accepted`;
    const fits = words.join("") === text;
    words.forEach((word, i) => {
      const source = sources[i] === "" ? "model" : sources[i] in SOURCES ? sources[i] : "other";
      this.sources[source] = (this.sources[source] ?? 0) + 1;
      const { name, about } = SOURCES[source];
      if (fits) this.marks.add(word, source, `${name}: ${about} · ${rest}`);
    });
    if (!fits) this.marks.add(text);
  }

  /** Put on the page what has come. */
  show() {
    cancelAnimationFrame(this.frame);
    this.frame = null;
    const { unseen } = this;
    this.unseen = "";
    this.shown(() => {
      if (unseen !== "") this.writer.write(unseen);
      this.facts.textContent = this.summary();
    }, false);
  }

  /** What is known of it, in a line. */
  summary() {
    const facts = [many(this.tokens, "token")];
    if (this.steps > 0) {
      facts.push(`${(this.tokens / this.steps).toFixed(2)} per step`);
      facts.push(this.drafted > 0
        ? `${this.accepted} of ${many(this.drafted, "draft")} accepted` : "nothing drafted");
    }
    if (this.seconds > 0) facts.push(`${(this.tokens / this.seconds).toFixed(1)} tokens/s`);
    if (this.ending !== "") facts.push(this.ending);
    return facts.join(" · ");
  }

  /** Say what failed, and what can be done. */
  fail({ message, advice = "" }) {
    this.failed = true;
    const said = html("p", { class: "error", role: "alert" }, html("strong", {}, message), ` ${advice}`);
    this.shown(() => this.article.append(said), false);
  }

  /** Nothing more comes. */
  end() {
    this.show();
    this.shown(() => {
      this.article.removeAttribute("aria-busy");
      this.body.querySelector(".token")?.setAttribute("tabindex", "0"); // Tab reaches the first
      if (this.text === "" && this.failed) this.facts.remove();
      this.legend.append(...legendOf(this.sources));
    }, true);
  }
}

/** Where its tokens were drafted from, as the command line says it. */
function legendOf(sources) {
  const seen = Object.keys(SOURCES).filter((name) => name !== "model" && sources[name] > 0);
  const names = seen.map((name) => html("span", { class: "token", ...markOf(name) }, SOURCES[name].name));
  return names.length === 0 ? [] : ["drafted from: ", ...names.flatMap((n, i) => (i ? [", ", n] : [n]))];
}
