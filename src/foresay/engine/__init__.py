"""Many answers at once, each exactly as if it were written alone.

llm        texts in, texts out: `foresay.LLM`
engine     the step: schedule, draft, forward, verify, commit
request    one answer being written; text: its text, and what ends it; logprobs
scheduler  who takes part in a step; prefixes: what texts share of their beginnings
guesser    the drafter at arm's length
budget     how many guesses are verified: the policies; load: the values they work on; urgency: who
           is waited for
adaptive   the default policy; cost: how long steps take; calibration, asking, isotonic: what it
           has learned; measure: the first timed steps
plain      the plain loop, the oracle of all this
"""
