// What is written once and compiled for each level of processor: one table of functions per level. csrc/cpu/levels.hpp says
// which table is used.
#pragma once

#include "cpu/attention_kernel.hpp"
#include "cpu/block_kernel.hpp"
#include "cpu/layer_kernel.hpp"
#include "cpu/linear_kernel.hpp"
#include "cpu/logprobs_kernel.hpp"
#include "cpu/noise_kernel.hpp"
#include "cpu/residual_kernel.hpp"
#include "cpu/row_kernel.hpp"

namespace foresay {

struct Kernels {
    const char* name;  // null: not compiled
    attention::Kernel attention;
    blocks::Kernel blocks;
    linear::Kernel linear;
    layer::Kernel layer;
    row::Kernel row;
    noise::Kernel noise;
    residual::Kernel residual;
    logprobs::Kernel logprobs;
};

extern const Kernels kPlain, kNeon, kDotprod, kI8mm, kAvx2, kAvx512, kVnni, kAmx;

}  // namespace foresay
