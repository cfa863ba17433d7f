"""What ModelDrafter and SelfDrafter are made of: drafts by decoding with a model.

drafter       DecodingDrafter: their common part
growth        grows the drafts of many requests, one forward pass per level; needs torch
law           which tokens the model proposes next; needs torch
noise_weight  how much of the target's noise a model follows, learned
shapes        the shapes of drafts: chains, trees, trees by confidence
written       one request: its text, and its keys and values
"""
