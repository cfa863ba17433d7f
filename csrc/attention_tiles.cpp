// Attention for machines with AVX-512 and AMX, whose matrix tiles multiply bfloat16. CMakeLists.txt says how this file is compiled; it may be for none.
#ifdef __AMX_BF16__
#define FORESAY_WIDTH 16
#define FORESAY_TILES 1
#define FORESAY_KERNEL kTiles
#define FORESAY_KERNEL_NAME "tiles"
#include "attention_loops.hpp"
#else
#include "attention_kernel.hpp"
const foresay::attention::Kernel foresay::attention::kTiles = {};
#endif
