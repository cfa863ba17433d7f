// The conversation: one answer at a time, its tokens marked by where they were drafted from.

import { answer, Refused } from "/page/api.js";
import { html, many, reachable } from "/page/parts.js";
import { SOURCES } from "/page/sources.js"; // which the server writes; page.css has a mark for each

/** Sources that are not in the legend: few servers have them, and the tip of a token tells. */
export const RARE = ["recycled", "draft_model", "head", "grammar", "edge", "other"];

const turns = document.getElementById("turns");
const empty = document.getElementById("empty");

/** A conversation. `hidden` is told the server's sentence when it does not tell sources. */
export class Conversation {
  constructor(hidden) {
    this.details = true;
    this.hidden = hidden;
    this.messages = [];
    this.running = null;
  }

  /** Forget all that was said. */
  clear() {
    this.stop();
    this.messages = [];
    turns.replaceChildren(empty);
  }

  /** End the answer that is being written. */
  stop() {
    this.running?.abort();
  }

  /** Ask, and write the answer while it comes. What went wrong is shown, and thrown. */
  async ask(question, options) {
    const messages = [...this.messages, { role: "user", content: question }];
    const running = (this.running = new AbortController());
    const asked = said("user", question);
    const shown = new Answer();
    let ending = "";
    try {
      ending = await this.write(shown, messages, options, running.signal);
    } catch (error) {
      if (error.name !== "AbortError") {
        shown.fail(error.message);
        throw error;
      }
      ending = "stopped";
    } finally {
      if (this.running === running) this.running = null;
      // A question without an answer is no part of what was said, nor is what was cleared meanwhile.
      if (shown.text === "") asked.classList.add("void");
      else if (asked.isConnected) {
        this.messages = [...messages, { role: "assistant", content: shown.text }];
      }
      shown.end(ending);
    }
    return shown.summary();
  }

  async write(shown, messages, options, signal) {
    const asked = { ...options, spec_details: this.details };
    let ending = "";
    try {
      for await (const chunk of answer(messages, asked, signal)) {
        keepingEnd(() => shown.add(chunk));
        ending = chunk.choices[0]?.finish_reason ?? ending;
      }
    } catch (error) {
      if (!(error instanceof Refused) || error.param !== "spec_details") throw error;
      this.details = false;
      this.hidden(error.message);
      return this.write(shown, messages, options, signal);
    }
    return ending === "length" ? "as long as allowed" : "";
  }
}

/** One answer on the page, and what is known of how it was written. */
class Answer {
  constructor() {
    this.text = "";
    this.tokens = this.steps = this.drafted = this.accepted = 0;
    this.begun = performance.now();
    this.seconds = 0;
    this.body = html("div", { class: "text", "data-rove": "", role: "group", "aria-label": "Answer" });
    this.foot = html("p", { class: "small" }, "…");
    this.article = html("article", { class: "answer", "aria-busy": "true" }, this.body, this.foot);
    keepingEnd(() => turns.append(this.article), true);
  }

  add(chunk) {
    this.seconds = (performance.now() - this.begun) / 1000;
    const text = chunk.choices[0]?.delta.content ?? "";
    this.text += text;
    if (chunk.foresay) this.mark(chunk.foresay);
    else this.body.append(text);
    this.tokens = chunk.usage?.completion_tokens ?? this.tokens;
    this.foot.textContent = this.summary();
  }

  mark({ words, sources, drafted, accepted }) {
    // A server that hides its traffic tells several steps at once; each adds one token of the
    // model's own to what was accepted.
    const steps = Math.max(words.length - accepted, 1);
    this.steps += steps;
    this.tokens += words.length;
    this.drafted += drafted;
    this.accepted += accepted;
    const of = steps === 1 ? `step ${this.steps}` : `steps to ${this.steps}`;
    words.forEach((word, i) => {
      if (word === "") return; // a part of a character, or the end
      const source = sources[i] === "" ? "model" : sources[i] in SOURCES ? sources[i] : "other";
      const tip = `${told(source)} · ${of}: ${accepted} of ${drafted} drafts accepted`;
      reachable(this.body, html("span", { class: `token ${source}`, "data-tip": tip }, word));
    });
  }

  summary() {
    const facts = [many(this.tokens, "token")];
    if (this.steps > 0) {
      facts.push(`${(this.tokens / this.steps).toFixed(2)} per step`);
      facts.push(`${this.accepted} of ${many(this.drafted, "draft")} accepted`);
    }
    if (this.seconds > 0) facts.push(`${(this.tokens / this.seconds).toFixed(1)} tokens/s`);
    return facts.join(" · ");
  }

  fail(sentence) {
    keepingEnd(() => this.article.append(html("p", { class: "error", role: "alert" }, sentence)));
  }

  end(ending) {
    this.article.removeAttribute("aria-busy");
    if (this.tokens === 0 && ending === "") this.foot.remove();
    else this.foot.textContent = this.summary() + (ending && ` · ${ending}`);
  }
}

function said(who, text) {
  const article = html("article", { class: who }, html("div", { class: "text" }, text));
  empty.remove();
  keepingEnd(() => turns.append(article), true);
  return article;
}

/** Change the conversation; who was looking at its end still does. */
function keepingEnd(change, always = false) {
  const atEnd = turns.scrollHeight - turns.scrollTop - turns.clientHeight < 40;
  change();
  if (atEnd || always) turns.scrollTop = turns.scrollHeight;
}

/** What a source is called, and what it is. */
function told(source) {
  return `${SOURCES[source].name}: ${SOURCES[source].about}`;
}
