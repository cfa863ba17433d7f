// The kernels for 64-bit processors of ARM, all of which have NEON. Elsewhere this file has none.
#ifdef __aarch64__
#define FORESAY_LEVEL kNeon
#define FORESAY_LEVEL_NAME "neon"
#define FORESAY_WIDTH 4
#define FORESAY_FUSED 1
#define FORESAY_DOTS 0
#define FORESAY_TILES 0
#include "cpu/level.hpp"
#else
#include "cpu/kernels.hpp"
const foresay::Kernels foresay::kNeon = {};
#endif
