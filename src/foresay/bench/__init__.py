"""Replay of recorded outputs through drafters, without a model, and the demonstration."""
