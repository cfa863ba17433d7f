"""MergeDrafter: several drafters' drafts in one tree.

drafter  MergeDrafter, and the rule for scores
members  whom it asks
paying   which slow drafters pay
merged   MergeState: one request, and its verdict as each drafter knows it
"""

from foresay.drafters.merge.drafter import MergeDrafter
from foresay.drafters.merge.merged import MergeState

__all__ = ["MergeDrafter", "MergeState"]
