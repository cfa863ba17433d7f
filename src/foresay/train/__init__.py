"""Training of drafters that have weights, on text that their target wrote.

write       the target writes answers
eagle       the head of EagleDrafter
unroll      its steps on its own features, as in drafting
model       a small model for ModelDrafter
distil      how it learns the target's distribution
boost       copies of it that learn what the ones before them miss
lesson      a target and its answers, in batches
settings    what is asked for, checked without torch
loop        updates of weights; what a training that was ended goes on from
"""
