"""The target on processors: the core's attention, linear layers, norms and decoder layers."""
