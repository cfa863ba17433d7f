"""Chats: what goes into the model's template, and what comes out of the answer's text.

deltas     what an answer consists of: reasoning, content, calls of tools
messages   messages in the form that chat templates take
tools      the tools of a request, and which of them may or must be called
formats    how models write calls: the table of formats, and which one a template has
grammar    the grammars that answers follow
reasoning  where the reasoning of an answer ends
calls      calls of tools, read from a text that comes in pieces
json_text  JSON, read one character at a time
answers    the answers of one request: their deltas and finish reasons
"""
