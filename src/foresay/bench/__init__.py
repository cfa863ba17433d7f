"""Replay through drafters without a model; the demonstration; all drafters with a model."""
