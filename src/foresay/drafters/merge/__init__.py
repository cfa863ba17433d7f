"""MergeDrafter: several drafters' drafts in one tree.

drafter  MergeDrafter, and the rule for scores
union    MergeState: one request, its merged draft, and its verdict as each drafter knows it
uniting  the members' drafts of a step in one tree
gating   which drafters take part in a step, and for how many nodes
"""

from foresay.drafters.merge.drafter import MergeDrafter
from foresay.drafters.merge.union import MergeState

__all__ = ["MergeDrafter", "MergeState"]
