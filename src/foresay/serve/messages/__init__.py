"""/v1/messages of Anthropic's clients, as a translation to chats and back.

errors     errors in its shape
schema     the bodies of requests and answers, and the events of streams
translate  a request as a chat
blocks     a chat's deltas as content blocks, and the events that tell of them
shape      whole messages and streams
routes     what the routes do

No name is imported here.
"""
