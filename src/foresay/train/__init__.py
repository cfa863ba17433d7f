"""Training of drafters that have weights, on text that their target wrote.

eagle     the head of EagleDrafter
unroll    its steps on its own features, as in drafting
texts     recorded answers, in batches
checkpoint  what a training that was ended goes on from
"""
