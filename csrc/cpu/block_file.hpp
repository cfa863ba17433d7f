// Linear layers from a GGUF file, several at once and on several threads.
//
// The file is read and not mapped: all of it is needed once, in another order, and a file that is cut meanwhile gives an error
// and not a signal. What a thread has read is laid out while it is in its cache.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cpu/block_linear.hpp"

namespace foresay {

/// Where a file stores a layer, and what else BlockLinear is given.
struct StoredLinear {
    std::string name;  // for errors
    blocks::Format format;
    uint64_t start;    // in the file
    size_t outs, ins;
    std::vector<int32_t> order;
    std::vector<float> bias;
};

/// The layers. Throws InputError naming the layer that does not fit, is damaged, or is not in the file as a whole, and for a file
/// that cannot be read; std::bad_alloc.
std::vector<std::shared_ptr<BlockLinear>> read_linears(const std::string& file, const std::vector<StoredLinear>& stored, uint32_t threads, const Kernels& level);

}  // namespace foresay
