"""`foresay lossless`."""
