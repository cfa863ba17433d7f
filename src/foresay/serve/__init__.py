"""The OpenAI-compatible server.

limits         the limits of a request, and the errors that clients get
address        where it listens, with which certificate, checked before a model is loaded
keys           API keys and their tenants
admission      ASGI middleware: API keys, open requests, headers, access log
refusals       what is refused, and what fails, as responses
wire           HTTP on a connection, parsed strictly
schema         the JSON bodies of requests
answer_schema  the JSON bodies of answers
parse          JSON bodies, parsed strictly
wrong          what is wrong with a body, as a sentence
validate       parsed bodies as prompts and sampling parameters
words          the text of single tokens, and other requests to the tokenizer
workers        threads for reading and for compiling, shared by tenants
driver         the one thread that drives the engine
request_state  one request of the engine, as the server knows it
stream         what the engine's thread sends to the event loop; the chunks of one client's answers
steps          the last steps, for each tenant its own share
answer         OpenAI's shapes: whole answers, chunks, usage, errors
events         server-sent events: pings, slow readers, lost clients
shield         padding and coalescing against traffic analysis
metrics        Prometheus metrics
openapi        the OpenAPI description
app            the routes
server         the process: sockets, signals, draining
start          the settings of a server, and its drafter
chat/          chats: tools, reasoning, the form of answers
responses/     /v1/responses
messages/      /v1/messages of Anthropic's clients
page/          the web page of the server
edge/          edge streams, the cloud's end

No name is imported here, so that `foresay serve --help` need not load a server.
"""
