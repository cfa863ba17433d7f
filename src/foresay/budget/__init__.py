"""How many drafted tokens a step verifies, and of which requests: no model, no clock, no torch.

policy       the policies by name, and what a policy is
adaptive     the default: what pays on this machine, for this load
least_chance  how likely a drafted token must be, for hosts that only tell how long steps take
cost         how long a step takes, by its rows and the tokens that they attend to
load         the values: what a step has to do, the nodes chosen, what was accepted
calibration  what a drafter's scores are worth
selected     the nodes that are verified, of the drafts that were made
draft_size   how many nodes the policy asks a drafter for, where drafting takes time
draft_length  how long the drafts of a merge's member are to be, and for which requests
price        what a token and a node are worth, for drafters that weigh their own work
trials       what trials may cost: the account of all that try
recent       means and medians of the latest observations
urgency      which requests are likely to end last
"""
