// Attention for machines with AVX2 and FMA. CMakeLists.txt says how this file is compiled; it may be for none.
#ifdef __AVX2__
#define FORESAY_WIDTH 8
#define FORESAY_TILES 0
#define FORESAY_KERNEL kV3
#define FORESAY_KERNEL_NAME "v3"
#include "attention_loops.hpp"
#else
#include "attention_kernel.hpp"
const foresay::attention::Kernel foresay::attention::kV3 = {};
#endif
