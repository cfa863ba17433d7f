"""Models on an NVIDIA GPU: Triton kernels over paged keys and values, a CUDA graph for each size of
step."""
