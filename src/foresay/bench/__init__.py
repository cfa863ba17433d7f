"""The lab: recorded outputs replayed through drafters, without a model."""
