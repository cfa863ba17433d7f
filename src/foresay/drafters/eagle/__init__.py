"""EagleDrafter: a small head that continues the target's own features.

head     the head: one decoder layer over features and embeddings
files    heads in folders: reading, checking, writing
drafter  EagleDrafter
"""

from foresay.drafters.eagle.drafter import EagleDrafter

__all__ = ["EagleDrafter"]
