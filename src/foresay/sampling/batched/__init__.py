"""The law and both rules over packed batches, in torch: no Python loop over requests or tokens.

rows       which row of logits belongs to which request and drafted node
inputs     what both rules take, checked
law        logits to processed scores
noise      the keyed noise and the choice, on any device; triton: the same in one GPU kernel
match      the rule whose text does not depend on drafts
rejection  the rule whose law does not
verdicts   where the walks ended, as verdicts
"""
