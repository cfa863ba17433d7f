"""Models on GPUs."""
