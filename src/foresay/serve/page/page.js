// The page: a chat on one side, what the server does on the other.

import { get } from "/page/api.js";
import { Conversation } from "/page/chat.js";
import { Chats } from "/page/chats.js";
import { newChat } from "/page/kept.js";
import { Numbers } from "/page/numbers.js";
import { watch } from "/page/parts.js";
import { Settings } from "/page/settings.js";

const $ = (id) => document.getElementById(id);

const settings = new Settings($("settings"), summarise);
const numbers = new Numbers(() => chat.running !== null, hide);
const chat = new Conversation(settings, {
  hidden: hide, busy, notice, again: send, facts: (answer, ended) => numbers.headline(answer, ended),
});
const chats = new Chats($("chats"), {
  opened: (kept) => chat.open(kept), deleted: (id) => chat.forget(id),
});

/** Ask a question, or ask one again in its place. */
async function send(question, at, told = null) {
  if (question === "" || chat.running) return;
  notice(told);
  const asked = chat.ask(question, { at, compare: $("compare").checked });
  numbers.look();
  if (await asked) $("said").textContent = "The answer is there.";
  else if ($("question").value === "") $("question").value = question; // to be asked again
  numbers.look();
}

function busy(is) {
  $("send").disabled = is;
  $("stop").disabled = !is;
  // Not away from what somebody reads, nor so that a phone shows its keyboard.
  const free = document.activeElement === document.body || $("ask").contains(document.activeElement);
  if (!is && free && matchMedia("(hover: hover)").matches) $("question").focus();
}

function notice(sentence) {
  $("notice").textContent = sentence ?? "";
  $("notice").hidden = sentence === null;
}

/** The server does not tell how many drafts were accepted. */
function hide(sentence) {
  chat.details = false;
  numbers.off = true;
  $("hidden").textContent = `${sentence} So there are no marks and no numbers.`;
  $("hidden").hidden = false;
  $("numbers").hidden = $("view").hidden = true;
  document.body.dataset.view = "chat";
  document.body.classList.add("plain");
}

function summarise() {
  const { temperature, max_tokens: most, system } = settings.values;
  $("chosen").textContent = `temperature ${temperature}, ${most} tokens${system ? ", system prompt" : ""}`;
}

/** On a phone one of both is seen: the chat, or the numbers. */
function view(which) {
  document.body.dataset.view = which;
  for (const button of $("view").querySelectorAll("button")) {
    button.setAttribute("aria-pressed", String(button.dataset.to === which));
  }
  numbers.look();
}

function listen() {
  $("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    const question = $("question").value.trim();
    if (chat.running) return;
    $("question").value = "";
    send(question);
  });
  $("question").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    $("ask").requestSubmit();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !document.querySelector("dialog[open]")) chat.stop();
  });
  $("stop").addEventListener("click", () => chat.stop());
  $("anew").addEventListener("click", () => {
    chat.open(newChat());
    notice(null);
    $("question").focus();
  });
  $("open-chats").addEventListener("click", () => chats.show());
  $("open-settings").addEventListener("click", () => $("settings").showModal());
  for (const button of document.querySelectorAll("[data-do=close]")) {
    button.addEventListener("click", () => button.closest("dialog").close());
  }
  for (const button of $("view").querySelectorAll("button")) {
    button.addEventListener("click", () => view(button.dataset.to));
  }
  for (const idea of document.querySelectorAll("#ideas button")) {
    idea.addEventListener("click", () => send(idea.textContent));
  }
  document.addEventListener("visibilitychange", () => numbers.look());
}

watch();
listen();
summarise();
get("/v1/models").then(
  ({ data }) => { $("model").textContent = data[0].id; },
  (error) => { $("model").textContent = `${error.message} ${error.advice ?? ""}`; },
);
numbers.look();
