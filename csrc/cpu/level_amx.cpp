// The kernels for machines with AVX-512 and AMX, whose matrix tiles multiply bfloat16. CMakeLists.txt says how this file is
// compiled; it may be for none.
#ifdef __AMX_BF16__
#define FORESAY_LEVEL kAmx
#define FORESAY_LEVEL_NAME "amx"
#define FORESAY_WIDTH 16
#define FORESAY_FUSED 1
#define FORESAY_DOTS 1
#define FORESAY_TILES 1
#include "cpu/level.hpp"
#else
#include "cpu/kernels.hpp"
const foresay::Kernels foresay::kAmx = {};
#endif
