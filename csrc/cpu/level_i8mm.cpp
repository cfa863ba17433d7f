// The kernels for 64-bit processors of ARM that multiply small matrices of bytes, and add two products of bfloat16 at once: all
// from Armv8.6 on. CMakeLists.txt says how this file is compiled; it may be for none.
#if defined(__aarch64__) && defined(__ARM_FEATURE_MATMUL_INT8) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define FORESAY_LEVEL kI8mm
#define FORESAY_LEVEL_NAME "i8mm"
#define FORESAY_WIDTH 4
#define FORESAY_FUSED 1
#define FORESAY_DOTS 2
#define FORESAY_TILES 0
#include "cpu/level.hpp"
#else
#include "cpu/kernels.hpp"
const foresay::Kernels foresay::kI8mm = {};
#endif
