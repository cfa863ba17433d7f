// The dialog with the chats that this browser keeps.

import { all, exported, forget } from "/page/kept.js";
import { html, many } from "/page/parts.js";

export class Chats {
  /** opened   called with a chat to go on with
   *  deleted  called with the id of a chat that is gone */
  constructor(dialog, { opened, deleted }) {
    Object.assign(this, { dialog, opened, deleted });
    this.list = dialog.querySelector("ul");
    this.sum = dialog.querySelector("[data-is=sum]");
    this.clear = dialog.querySelector("[data-do=clear]");
    dialog.querySelector("[data-do=export]").addEventListener("click", () => save(all()));
    this.clear.addEventListener("click", () => this.deleteAll());
  }

  show() {
    this.fill();
    this.dialog.showModal();
  }

  fill() {
    const chats = all();
    this.sure = false;
    this.clear.textContent = "Delete all";
    this.sum.textContent = chats.length > 0
      ? `${many(chats.length, "chat")}, kept in this browser and nowhere else.`
      : "No chats yet. They are kept in this browser and nowhere else.";
    for (const button of this.dialog.querySelectorAll("[data-do=export], [data-do=clear]")) {
      button.disabled = chats.length === 0;
    }
    this.list.replaceChildren(...chats.map((chat) => this.entry(chat)));
  }

  entry(chat) {
    const when = new Date(chat.changed).toLocaleString();
    const open = html("button", { type: "button", class: "title" }, chat.title,
      html("small", {}, `${many(chat.turns.length, "question")} · ${when}`));
    open.addEventListener("click", () => {
      this.dialog.close();
      this.opened(chat);
    });
    const gone = html("button", { type: "button", "aria-label": `Delete: ${chat.title}` }, "Delete");
    gone.addEventListener("click", () => {
      this.remove(chat);
      this.fill();
      (this.list.querySelector("button") ?? this.dialog.querySelector("[data-do=close]")).focus();
    });
    return html("li", {}, open, gone);
  }

  remove({ id }) {
    forget(id);
    this.deleted(id);
  }

  /** Only when it was pressed twice. */
  deleteAll() {
    if (!this.sure) {
      this.sure = true;
      this.clear.textContent = "Really delete all?";
      return;
    }
    for (const chat of all()) this.remove(chat);
    this.fill();
  }
}

/** Let the browser save the chats as a file. */
function save(chats) {
  const href = URL.createObjectURL(new Blob([exported(chats)], { type: "application/json" }));
  html("a", { href, download: "foresay-chats.json" }).click();
  setTimeout(() => URL.revokeObjectURL(href), 10_000);
}
