// Functions that are inlined without exception, for the reason that csrc/attention_loops.hpp gives.
#pragma once

#define FORESAY_INLINE inline __attribute__((always_inline))
