"""What ModelDrafter and SelfDrafter are made of: drafts by decoding with a model.

drafter       DecodingDrafter: their common part
tree_builder  builds the drafts of many requests, one forward pass per level; needs torch
next_tokens   which tokens the model proposes next; needs torch
noise_weight  the learned weight of the Gumbel coupling: how far a model follows the target's noise
dropout       how much a model's logits vary; needs torch
shapes        the shapes of drafts: chains, trees, trees by confidence
state         one request: its text, and its keys and values
"""
