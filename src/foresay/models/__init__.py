"""Models: getting weights, the KV cache of each text, and the target that computes logits."""
