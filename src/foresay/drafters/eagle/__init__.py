"""EagleDrafter: a small head that continues the target's own features.

head     the head: one decoder layer over features and embeddings
tree     draft trees that grow where the head is confident
files    heads in folders: reading, checking, writing
drafter  EagleDrafter
"""

from foresay.drafters.eagle.drafter import EagleDrafter, EagleState

__all__ = ["EagleDrafter", "EagleState"]
