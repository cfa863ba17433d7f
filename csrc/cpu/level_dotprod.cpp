// The kernels for 64-bit processors of ARM that add four products of bytes at once. CMakeLists.txt says how this file is
// compiled; it may be for none.
#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
#define FORESAY_LEVEL kDotprod
#define FORESAY_LEVEL_NAME "dotprod"
#define FORESAY_WIDTH 4
#define FORESAY_FUSED 1
#define FORESAY_DOTS 1
#define FORESAY_TILES 0
#include "cpu/level.hpp"
#else
#include "cpu/kernels.hpp"
const foresay::Kernels foresay::kDotprod = {};
#endif
