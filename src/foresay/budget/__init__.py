"""How many drafted tokens a step verifies, and of which requests: no model, no clock, no torch.

policy       the policies by name, and what a policy is
adaptive     the default: what pays on this machine, for this load
least_chance  how likely a drafted token must be, for hosts that only tell how long steps take
cost         how long a step takes, by its rows and the tokens that they attend to
load         the values: what a step has to do, the nodes chosen, what was accepted
calibration  what a drafter's scores are worth
asking       how many nodes to ask a drafter for, where asking takes time
urgency      which requests are likely to end last
"""
