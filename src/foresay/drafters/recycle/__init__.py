"""RecycleDrafter: Token Recycling.

drafter    RecycleDrafter
table_file  what it knows, as a file
"""

from foresay.drafters.recycle.drafter import RecycleDrafter

__all__ = ["RecycleDrafter"]
