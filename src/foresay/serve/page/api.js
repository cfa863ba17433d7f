// What the page asks of the server: the routes of OpenAI's clients, and /v1/spec/stats.

/** What the server says when it refuses, in its own sentence. */
export class Refused extends Error {
  constructor(status, { message, param }) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

/** The JSON at a path. */
export async function get(path) {
  return (await checked(fetch(path))).json();
}

/** The chunks of a streamed answer to the messages, as they come. */
export async function* answer(messages, options, signal) {
  const response = await checked(fetch("/v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({
      messages, ...options, stream: true, stream_options: { include_usage: true },
    }),
    signal,
  }));
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Refused(response.status, chunk.error);
    yield chunk;
  }
  throw new Error("The connection ended before the answer did.");
}

/** The data of server-sent events. Comments (pings, padding) are dropped. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      if (block.startsWith("data: ")) yield block.slice(6);
    }
  }
}

async function checked(asked) {
  let response;
  try {
    response = await asked;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer.");
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  const message = `The server answered ${response.status} ${response.statusText}.`;
  throw new Refused(response.status, body.error ?? { message });
}
