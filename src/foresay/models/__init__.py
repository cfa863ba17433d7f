"""Models: getting weights, the pages of keys and values, the target that runs over them."""
