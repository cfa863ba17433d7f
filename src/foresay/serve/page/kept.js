// Chats in the browser's own storage, one entry each: at most so many, the oldest go first. Nothing
// is sent anywhere.

import { read } from "/page/settings.js";

const PREFIX = "foresay.chat.";
const MOST = 50; // chats
const LONGEST = 1_000_000; // characters of one

/** A chat: {id, title, changed, turns: [{question, answer, facts}]}. */
export function newChat() {
  return { id: crypto.getRandomValues(new Uint32Array(2)).join("-"), title: "", changed: 0, turns: [] };
}

/** Keep a chat. Returns why it could not be kept; null: it is. */
export function keep(chat) {
  chat.changed = Date.now();
  chat.title = chat.turns[0]?.question.slice(0, 80) ?? "";
  if (chat.turns.length === 0) return forget(chat.id);
  const text = JSON.stringify(chat);
  if (text.length > LONGEST) {
    return `This chat has ${text.length} characters; chats up to ${LONGEST} are kept. Export it, or begin a new one.`;
  }
  const others = all().filter(({ id }) => id !== chat.id);
  for (const { id } of others.splice(MOST - 1)) forget(id);
  for (;;) {
    try {
      localStorage.setItem(PREFIX + chat.id, text);
      return null;
    } catch {
      const oldest = others.pop();
      if (!oldest) return "This browser keeps nothing for this page: the chat is gone when you leave.";
      forget(oldest.id);
    }
  }
}

export function forget(id) {
  try {
    localStorage.removeItem(PREFIX + id);
  } catch {
    // A browser that keeps nothing has nothing to forget.
  }
  return null;
}

/** All chats, the latest first. What is not a chat is left out: somebody may have changed it. */
export function all() {
  let keys = [];
  try {
    keys = Object.keys(localStorage);
  } catch {
    return [];
  }
  const found = keys.filter((key) => key.startsWith(PREFIX)).map((key) => ({ key, chat: read(key) }));
  return found
    .filter(({ key, chat }) => isChat(chat) && key === PREFIX + chat.id)
    .map(({ chat }) => chat)
    .sort((a, b) => b.changed - a.changed);
}

function isChat(value) {
  const texts = (turn, ...names) => names.every((name) => typeof turn?.[name] === "string");
  return texts(value, "id", "title") && Number.isFinite(value.changed) && Array.isArray(value.turns) &&
    value.turns.every((turn) => texts(turn, "question", "answer", "facts"));
}

/** What was said, as the messages of a request. */
export function messagesOf(turns) {
  return turns.flatMap(({ question, answer }) => [
    { role: "user", content: question }, { role: "assistant", content: answer },
  ]);
}

/** All chats as the text of a file. */
export function exported(chats) {
  const listed = chats.map(({ title, changed, turns }) => ({
    title, changed: new Date(changed).toISOString(), messages: messagesOf(turns),
  }));
  return JSON.stringify({ chats: listed }, null, 1);
}
