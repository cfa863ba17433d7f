// The kernels for machines with AVX-512 that add four products of bytes at once. CMakeLists.txt says how this file is compiled;
// it may be for none.
#ifdef __AVX512VNNI__
#define FORESAY_LEVEL kVnni
#define FORESAY_LEVEL_NAME "vnni"
#define FORESAY_WIDTH 16
#define FORESAY_FUSED 1
#define FORESAY_DOTS 1
#define FORESAY_TILES 0
#include "cpu/level.hpp"
#else
#include "cpu/kernels.hpp"
const foresay::Kernels foresay::kVnni = {};
#endif
