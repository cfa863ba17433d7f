"""Edge and cloud: a device drafts, the cloud verifies and alone decides what is committed."""
