"""The target on NVIDIA GPUs."""
