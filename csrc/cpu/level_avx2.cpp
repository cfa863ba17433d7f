// The kernels for machines with AVX2 and FMA. CMakeLists.txt says how this file is compiled; it may be for none.
#ifdef __AVX2__
#define FORESAY_LEVEL kAvx2
#define FORESAY_LEVEL_NAME "avx2"
#define FORESAY_WIDTH 8
#define FORESAY_FUSED 1
#define FORESAY_DOTS 0
#define FORESAY_TILES 0
#include "cpu/level.hpp"
#else
#include "cpu/kernels.hpp"
const foresay::Kernels foresay::kAvx2 = {};
#endif
