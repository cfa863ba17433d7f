"""Many requests at once; each answer is exactly what it would be alone.

llm        texts in, texts out: `foresay.LLM`
engine     the step: schedule, draft, forward, verify, commit
request    one request and its answer so far; text: stop strings; logprobs
scheduler  which requests a step computes; pages: its memory; prefixes: the prefix cache
groups     samples of one prompt
drafting   asks the drafter and checks its answers; proposal: the drafts of a step
load       what a step has to do, as the policy sees it (foresay.budget)
measure    how long steps take: the first timed ones
plain      the plain loop, the oracle of all this
"""
