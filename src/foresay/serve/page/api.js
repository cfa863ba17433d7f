// What the page asks of the server: the routes of OpenAI's clients, and /v1/spec/stats. What fails
// is told in two sentences: what failed, and what can be done.

/** What failed (`message`), and `advice`. Of a refusal also its status, and the field's name. */
export class Failure extends Error {
  constructor(message, advice, { status = 0, param = null } = {}) {
    super(message);
    Object.assign(this, { advice, status, param });
  }
}

const LOST = "What was written stays. “Regenerate” asks again.";

/** The JSON at a path. */
export async function get(path) {
  return (await sent(path)).json();
}

/** The chunks of a streamed answer to the messages, as they come. */
export async function* answer(messages, options, signal) {
  const response = await sent("/v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({
      messages, ...options, stream: true, stream_options: { include_usage: true },
    }),
    signal,
  });
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Failure(sentence(chunk.error.message), LOST);
    yield chunk;
  }
  throw new Failure("The connection ended before the answer did.", LOST);
}

/** The data of server-sent events. Comments (pings, padding) are dropped. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch((error) => {
      if (error.name === "AbortError") throw error;
      throw new Failure("The connection to the server broke before the answer ended.", LOST);
    });
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      if (block.startsWith("data: ")) yield block.slice(6);
    }
  }
}

async function sent(path, options) {
  const response = await fetch(path, options).catch((error) => {
    if (error.name === "AbortError") throw error;
    throw new Failure(
      `The server at ${location.host} cannot be reached.`,
      "It may have stopped, or the network is down. Send again when it is back.",
    );
  });
  if (response.ok) return response;
  const { status } = response;
  const { error } = await response.json().catch(() => ({}));
  const message = error?.message ?? `the server answered ${status} ${response.statusText}`;
  throw new Failure(sentence(message), advice(response, error ?? {}), { status, param: error?.param });
}

/** What can be done about a refusal. */
function advice(response, { code, param }) {
  const seconds = Number(response.headers.get("retry-after"));
  if (code === "context_length_exceeded") return "Begin a new chat, or lower max tokens in Settings.";
  if (response.status === 400) return param === "messages" ? "" : "Change it in Settings.";
  if (response.status === 401) return "Reload the page and log in with a key.";
  if (response.status === 413) return "Shorten the question, or begin a new chat.";
  if (seconds > 0) return `Send again in ${seconds} s.`;
  return response.status >= 500 ? "Send again later; the server's log says more." : "";
}

function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}
