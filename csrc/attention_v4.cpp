// Attention for machines with AVX-512. CMakeLists.txt says how this file is compiled; it may be for none.
#ifdef __AVX512F__
#define FORESAY_WIDTH 16
#define FORESAY_TILES 0
#define FORESAY_KERNEL kV4
#define FORESAY_KERNEL_NAME "v4"
#include "attention_loops.hpp"
#else
#include "attention_kernel.hpp"
const foresay::attention::Kernel foresay::attention::kV4 = {};
#endif
