"""RecycleDrafter: Token Recycling.

drafter    RecycleDrafter
laws_file  what it knows, as a file
"""

from foresay.drafters.recycle.drafter import RecycleDrafter

__all__ = ["RecycleDrafter"]
