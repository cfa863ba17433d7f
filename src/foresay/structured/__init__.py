"""Structured answers: which tokens may come next in an answer that is to have a form.

grammars  Grammars compiles a `StructuredOutputs` for a tokenizer, bounded and remembered
matcher   Grammar; GrammarMatcher: it at one place of one answer, masks, roll-back, forced tokens
tree      a draft tree under a grammar: without what it forbids, with what it forces; masks
lead      what is written before the form begins: `StructuredOutputs.after`
rules     forms in Lark's notation
library   llguidance with our limits
trial     compiles a grammar in a process of its own first (trial_process), which may be killed

It is the only room that imports llguidance, which is imported when the first grammar is compiled.
"""
