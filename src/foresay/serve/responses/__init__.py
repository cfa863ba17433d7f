"""/v1/responses, as a translation to chats and back.

schema     the bodies of requests and answers
events     the events of streams
items      input items, checked; as messages of a chat
translate  a request as a chat
output     a chat's deltas as output items, and the events that tell of them
shape      whole responses and streams
kept       responses that clients may name again, in memory
routes     the routes

No name is imported here.
"""
