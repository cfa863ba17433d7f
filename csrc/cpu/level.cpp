// The kernels of one level. CMakeLists.txt has a table of the levels, and has this file compiled for each with
//   FORESAY_LEVEL, FORESAY_LEVEL_NAME  its table of kernels, and its name in FORESAY_CPU
//   FORESAY_THERE                      whether the compiler knows the level; else its table is empty
//   FORESAY_WIDTH, FORESAY_FUSED       as csrc/cpu/vectors.hpp says
//   FORESAY_DOTS                       as csrc/cpu/bytes.hpp says
//   FORESAY_TILES                      whether there are matrix tiles of bfloat16
//
// Everything is in unnamed namespaces and nothing of the standard library is used: the linker would be free to take this
// file's copy of an inline function for the rest of the program, which must run on lesser machines.
//
// Fused multiplication and addition is asked for by name, and the compiler may not contract others (-ffp-contract=off):
// where bits are promised, all of them must come about in the same way.
#include "cpu/kernels.hpp"

#if FORESAY_THERE

#include "cpu/attention_loops.hpp"
#include "cpu/block_loops.hpp"
#if FORESAY_TILES
#include "cpu/linear_tiles.hpp"
#else
#include "cpu/linear_loops.hpp"
#endif
#include "cpu/logprobs_loops.hpp"
#include "cpu/noise_loops.hpp"
#include "cpu/residual_loops.hpp"
#include "cpu/row_loops.hpp"

const foresay::Kernels foresay::FORESAY_LEVEL = {
    FORESAY_LEVEL_NAME, attention::kKernel, blocks::kKernel, linear::kKernel, layer::kKernel, row::kKernel, noise::kKernel, residual::kKernel,
    logprobs::kKernel,
};

#else
const foresay::Kernels foresay::FORESAY_LEVEL = {};
#endif
