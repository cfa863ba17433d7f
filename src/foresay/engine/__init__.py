"""Many requests at once; each answer is exactly what it would be alone.

llm        texts in, texts out: `foresay.LLM`; answers: what comes out
engine     requests in, tokens out: schedule, draft, forward, verify, commit
compute    a step's forward and verify; an engine can be given another
step       the state of one step, and the parts of it that need no engine
request    one request and its answer so far; text: stop strings; logprobs
samples    several samples of one prompt, added together; groups: when their group ends
scheduler  which requests a step computes; pages: its memory; prefixes: the prefix cache
drafting   calls the drafter and checks its drafts; proposal: the drafts of a step
measure    how long steps take: the first timed ones
plain      the plain loop, the oracle of all this
"""
