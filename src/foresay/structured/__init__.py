"""Structured answers: which tokens may come next in an answer that is to have a form.

grammars  Grammars compiles a `StructuredOutputs` for a tokenizer, bounded and remembered
matcher   Grammar; GrammarMatcher: it at one place of one answer, masks, roll-back, forced tokens
tree      which nodes of a draft tree are legal, and the masks behind them
lead      what is written before the form begins: `StructuredOutputs.after`

It is the only room that imports llguidance, which is imported when the first grammar is compiled.
"""
