"""How many guesses a step verifies, and whose. Values in, values out: no model, no clock, no torch.

policy       the policies by name, and what a policy is
adaptive     the default: what pays on this machine, for this load
least_chance  how likely a guess must be, for hosts that tell nothing but how long steps take
cost         how long a step takes, by its rows and what they read
load         the values: what a step has to do, the nodes chosen, what came of them
calibration  what a drafter's scores are worth
asking       how many nodes to ask a drafter for, where asking takes time
urgency      who is waited for
"""
