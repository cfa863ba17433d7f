// The kernels for machines with AVX-512 (F, BW, DQ, VL). CMakeLists.txt says how this file is compiled; it may be for none.
#ifdef __AVX512F__
#define FORESAY_LEVEL kAvx512
#define FORESAY_LEVEL_NAME "avx512"
#define FORESAY_WIDTH 16
#define FORESAY_FUSED 1
#define FORESAY_DOTS 0
#define FORESAY_TILES 0
#include "cpu/level.hpp"
#else
#include "cpu/kernels.hpp"
const foresay::Kernels foresay::kAvx512 = {};
#endif
