// Levels of processors: plain, neon, dotprod, i8mm, avx2, avx512, vnni, amx. One of them is used, the best that the machine has, or
// the one that the environment variable FORESAY_CPU names. Everything that is compiled for several levels asks here.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cpu/kernels.hpp"

namespace foresay {

/// What this machine can run, the best first; plain is the last. Any thread may ask.
const std::vector<const Kernels*>& levels();

/// The level of that name; without a name the one in use, which is decided when it is first asked for. Throws InputError for
/// a name, or a value of FORESAY_CPU, that is not among levels().
const Kernels& level_of(std::string_view name = {});

/// The levels of this kind of processor that are better than the one in use, the best first, and why each is not used.
/// Throws as level_of() does.
std::vector<std::pair<std::string, std::string>> better_levels();

}  // namespace foresay
