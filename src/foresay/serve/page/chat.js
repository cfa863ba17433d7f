// The conversation: questions and answers, which can be asked again, edited, and compared.

import { Answer } from "/page/answer.js";
import { answer } from "/page/api.js";
import { verdict } from "/page/compare.js";
import { keep, messagesOf, newChat } from "/page/kept.js";
import { Markdown } from "/page/markdown.js";
import { AsWritten, Marks } from "/page/marks.js";
import { copying, html } from "/page/parts.js";

const turns = document.getElementById("turns");
const empty = document.getElementById("empty");

export class Conversation {
  /** settings  of the page
   *  told      called when something happens: `hidden` with the sentence of a server that does not
   *            tell sources, `facts` with the answer that changes and whether it has ended, `busy`
   *            with whether one is being written, `notice` with what somebody should know,
   *            `again` with a question, the turn in whose place it is to be asked, and a notice */
  constructor(settings, told) {
    this.settings = settings;
    this.told = told;
    this.details = true;
    this.running = null;
    this.open(newChat());
  }

  /** Show a chat, to go on with it. */
  open(chat) {
    this.stop();
    this.running = null;
    this.told.busy(false);
    this.chat = chat;
    this.shown = chat.turns.map((turn, i) => this.past(turn, i)); // an element for each turn
    turns.replaceChildren(...(this.shown.length > 0 ? this.shown : [empty]));
    turns.scrollTop = turns.scrollHeight;
  }

  /** A chat was deleted. */
  forget(id) {
    if (this.chat.id !== id) return;
    this.chat.deleted = true; // also to the answer that ends now
    this.open(newChat());
  }

  /** End the answers that are being written. */
  stop() {
    this.running?.abort();
  }

  /** Ask, and write the answer while it comes. Returns whether there is one.
   *  at       the turn in whose place it is asked; what was said from there on is gone
   *  compare  whether to write it without drafts, too */
  async ask(question, { at = this.chat.turns.length, compare = false } = {}) {
    const { chat, settings } = this;
    const running = (this.running = new AbortController());
    const messages = [...settings.before, ...messagesOf(chat.turns.slice(0, at))];
    const asked = [...messages, { role: "user", content: question }];
    const { options, seed } = seeded(settings.options, compare);
    const answers = this.columns(compare);
    const turn = this.turn(question, at, answers);
    for (const old of this.shown.splice(at)) old.remove();
    empty.remove();
    keepingEnd(() => turns.append(turn), true);
    this.shown.push(turn);
    this.told.busy(true);
    const way = [{}, { speculative: false }];
    await Promise.all(answers.map((one, i) =>
      this.write(one, asked, { ...options, ...way[i] }, running.signal)));
    const said = answers[0].text;
    if (compare) turn.append(html("p", { class: "verdict", role: "status" }, ...verdict(...answers, seed)));
    // A question without an answer is no part of what was said.
    const facts = answers[0].summary();
    chat.turns.splice(at, Infinity, ...(said === "" ? [] : [{ question, answer: said, facts }]));
    if (said === "") {
      turn.classList.add("void");
      if (this.chat === chat) this.shown.pop();
    }
    const lost = chat.deleted ? null : keep(chat);
    if (lost) this.told.notice(lost);
    if (this.running === running) {
      this.running = null;
      keepingEnd(() => {}, true);
      this.told.busy(false);
    }
    return said !== "";
  }

  columns(compare) {
    const { markdown } = this.settings.values;
    const made = (title, first) => new Answer({
      title, markdown, shown: (change, last) => {
        keepingEnd(change);
        if (first) this.told.facts(own, last);
      },
    });
    const own = made(compare ? "With drafts" : "", true);
    return compare ? [own, made("Without drafts", false)] : [own];
  }

  /** Write one answer to its end, whatever ends it. */
  async write(shown, messages, options, signal) {
    try {
      for await (const chunk of answer(messages, { ...options, spec_details: this.details }, signal)) {
        shown.add(chunk);
      }
    } catch (error) {
      if (error.param === "spec_details") {
        this.details = false;
        this.told.hidden(error.message);
        return this.write(shown, messages, options, signal);
      }
      if (error.name === "AbortError") shown.ending = "stopped";
      else shown.fail(error);
    }
    shown.end();
  }

  /** A question with its answers. */
  turn(question, at, answers) {
    const text = html("div", { class: "text" }, question);
    const asked = html("article", { class: "user" }, text, html("p", { class: "actions" },
      this.button("Edit", "Edit this question", () => this.edit(asked, question, at)),
      copying("Copy the question", () => question)));
    answers.forEach((one, i) => {
      const buttons = html("p", { class: "actions" }, copying("Copy the answer", () => one.text));
      if (i === 0) {
        const again = () => this.told.again(question, at);
        buttons.append(this.button("Regenerate", "Ask this question again", again));
      }
      one.article.append(buttons);
    });
    return html("section", { class: answers.length > 1 ? "turn two" : "turn" }, asked,
      html("div", { class: "answers" }, ...answers.map((one) => one.article)));
  }

  /** A turn that was kept. */
  past({ question, answer: text, facts }, at) {
    const body = html("div", { class: "text", role: "group", "aria-label": "Answer" });
    const marks = new Marks();
    marks.add(text);
    const writer = this.settings.values.markdown ? Markdown : AsWritten;
    new writer(body, (from, to) => marks.nodes(from, to)).write(text);
    const article = html("article", { class: "answer" }, body, html("p", { class: "small facts" }, facts));
    return this.turn(question, at, [{ article, text }]);
  }

  edit(article, question, at) {
    const box = html("textarea", { "aria-label": "The question, edited", rows: "3" });
    box.value = question;
    const form = html("form", { class: "editing" }, box, html("p", { class: "actions" },
      html("button", { type: "submit" }, "Ask again"),
      this.button("Cancel", "Leave the question as it was", () => form.replaceWith(article))));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const edited = box.value.trim();
      if (edited === "" || this.running) return;
      let notice = null;
      if (at + 1 < this.chat.turns.length) {
        // What was said after it stays, in the chat that is kept.
        this.chat = { ...newChat(), turns: this.chat.turns.slice() };
        notice = "What was said before this change is kept, in Chats.";
      }
      this.told.again(edited, at, notice);
    });
    box.addEventListener("keydown", (event) => {
      if (event.key === "Escape") form.replaceWith(article);
    });
    article.replaceWith(form);
    box.focus();
  }

  button(label, about, does) {
    const button = html("button", { type: "button", title: about, "aria-label": about }, label);
    button.addEventListener("click", () => {
      if (!this.running) does();
    });
    return button;
  }
}

/** The options with the seed that both answers of a comparison have, and what it is called. */
function seeded(options, compare) {
  if (options.temperature === 0) return { options, seed: "temperature 0" };
  if (!compare) return { options, seed: "" };
  const seed = options.seed ?? crypto.getRandomValues(new Uint32Array(1))[0];
  return { options: { ...options, seed }, seed: `seed ${seed}` };
}

/** Change the conversation; who was looking at its end still does. */
function keepingEnd(change, always = false) {
  const atEnd = turns.scrollHeight - turns.scrollTop - turns.clientHeight < 40;
  change();
  if (atEnd || always) turns.scrollTop = turns.scrollHeight;
}
