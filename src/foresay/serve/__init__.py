"""The server: what OpenAI's clients ask, answered by the engine.

limits    what a client may ask for, and how it is told otherwise
keys      who may ask, and whose history they share
ask       what clients send
question  what clients send, as prompts and parameters
words     single tokens as text, and what else a client asks of a tokenizer
stream    what one client is told, piece by piece
job       one answer on its way, as the engine's thread knows it
driver    the one thread that drives the engine
news      what the engine's thread tells the event loop, and when
steps     what the last steps did, for each tenant its own
answer    OpenAI's shapes of what clients get
events    server-sent events: pings, slow readers, lost clients
shield    padding and coalescing against those who watch the traffic
metrics   numbers for Prometheus
gate      what every request passes before its route
wire      HTTP as it comes over a connection, and what of it is refused
describe  the OpenAPI description
app       the routes
server    the process: sockets, signals, draining
start     a server from its settings
page/     a page to look at it all, served by itself

No name is imported here, so that `foresay serve --help` need not load a server.
"""
