"""Logits processors and both rules over packed batches, in torch, and rule match on processors in
the core: no Python loop over requests or tokens.

verify      what a step calls: each request by its own rule
rows        which row of logits belongs to which request and drafted node
inputs      what both rules take, checked
processors  logits to processed scores
noise       the keyed noise and the choice of tokens, on any device; triton: in one GPU kernel
match       the rule that keeps the text
rejection   the rule that keeps the distribution
verdicts    from accepted paths to verdicts
"""
