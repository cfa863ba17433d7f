"""/v1/messages of Anthropic's clients, as a translation to chats and back.

errors     errors in its shape

No name is imported here.
"""
