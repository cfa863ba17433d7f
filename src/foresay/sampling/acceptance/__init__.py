"""Logits processors and both rules over packed batches, in the core where the logits are on the
CPU, elsewhere in torch and Triton, where a step waits for the device once: no Python loop over
requests or tokens.

verify      what a step calls: each request by its own rule
rows        which row of logits belongs to which request and drafted node
inputs      what both rules take, checked
processors  logits to processed scores; planned: the same on a device, without a wait
masks       the tokens that a form of answers forbids
noise       the keyed noise and the choice of tokens, on any device; triton: in one GPU kernel
triton_limits, triton_penalties  what planned does, in GPU kernels
upload      small arrays to the device and back, one copy each way
match       the rule that keeps the text
rejection   the rule that keeps the distribution; tries: what its walks could need, on a device
verdicts    from accepted paths to verdicts
"""
