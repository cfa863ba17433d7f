"""The engine: schedule, draft, forward, verify, commit."""
