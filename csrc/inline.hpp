// Functions that are inlined without exception: in csrc/cpu/level.cpp for the reason given there, elsewhere because a
// call would take as long as its work.
#pragma once

#define FORESAY_INLINE inline __attribute__((always_inline))
