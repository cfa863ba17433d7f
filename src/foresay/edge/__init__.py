"""Edge streams: an edge client drafts, the cloud verifies and alone commits; only ids travel."""
