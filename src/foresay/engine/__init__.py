"""Many answers at once, each exactly as if it were written alone.

llm        texts in, texts out: `foresay.LLM`
engine     the step: schedule, draft, forward, verify, commit
request    one answer being written; text: its text, and what ends it; logprobs
scheduler  who takes part in a step; prefixes: what texts share of their beginnings
groups     samples of one prompt
guesser    the drafter at arm's length
load       what a step has to do, as the policy sees it (foresay.budget)
measure    how long steps take: the first timed ones
plain      the plain loop, the oracle of all this
"""
