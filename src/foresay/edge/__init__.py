"""Edge streams: an edge client drafts, the cloud verifies and alone commits; ids travel, no text."""
