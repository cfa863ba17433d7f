// Linear layers whose weights stay in the blocks of a GGUF file, and whose bits can be relied on.
//
// Activations are quantised row by row, in blocks of 32, where weights are quantised; products are sums of integers, scaled in
// float32. The bits of a row's result depend on that row and the weights, and on nothing else: not on other rows, on how many
// there are, or on threads. They are the same on all levels but plain, which rounds products before it adds them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cpu/levels.hpp"
#include "slab.hpp"

namespace foresay {

/// The format of that name ("Q4_1"). Throws InputError.
blocks::Format format_of(std::string_view name);

struct BlockProduct;

/// x times the transposed weight, plus the bias. Any number of threads may use it at a time.
class BlockLinear {
public:
    /// `weight` has `outs` rows of `ins` numbers, as GGUF stores them; output i is row order[i] if an order is given. Copies all.
    /// Throws InputError for a size that does not fit, an order that is none, scales and weights that are no numbers; std::bad_alloc.
    BlockLinear(blocks::Format format, std::span<const uint8_t> weight, size_t outs, size_t ins, std::span<const int32_t> order,
                std::span<const float> bias, const Kernels& level);
    /// The same without weights, which `lay_out` brings; before that they are indeterminate. Throws as the other.
    BlockLinear(blocks::Format format, size_t outs, size_t ins, std::span<const float> bias, const Kernels& level);
    /// The weights of one panel, from the stored rows of its outputs. Threads may do this for different panels. Throws InputError.
    void lay_out(size_t panel, const blocks::StoredRows& rows);
    size_t panels() const noexcept { return (outs_ + level_->blocks.outs - 1) / level_->blocks.outs; }

    const Kernels& level() const noexcept { return *level_; }
    blocks::Format format() const noexcept { return format_; }
    size_t ins() const noexcept { return ins_; }
    size_t outs() const noexcept { return outs_; }
    size_t bytes() const noexcept { return panels() * panel_bytes_ + bias_.get_deleter().count * sizeof(float); }
    /// Bytes of the weights in the file.
    size_t stored_bytes() const noexcept { return outs_ * row_bytes(); }
    size_t row_bytes() const noexcept { return ins_ / blocks::facts_of(format_).numbers * blocks::facts_of(format_).bytes; }
    /// The weights of one output as floats, `ins` of them.
    void row(size_t out, float* to) const noexcept;

private:
    friend void multiply(std::span<const BlockProduct>, const float*, size_t, uint32_t);
    blocks::Layer layer() const noexcept { return {panels_.get(), bias_.get()}; }

    const Kernels* level_;
    blocks::Format format_;
    size_t ins_, outs_, panel_bytes_;
    std::shared_ptr<uint8_t> panels_;  // with those of other layers in one piece of memory
    slab::Array<float> bias_;
};

/// Bytes that a file takes for `outs` times `ins` weights. Throws InputError for sizes that no layer has.
size_t stored_bytes_of(blocks::Format format, size_t outs, size_t ins);
/// Throws InputError for an order that is none of `outs` rows.
void check_order(std::span<const int32_t> order, size_t outs);

/// What is made of the same rows at once.
struct BlockProduct {
    const BlockLinear& layer;
    float* out;                       // [rows, outs], and elsewhere than x
    const BlockLinear* up = nullptr;  // of the same size and format: the result is activation(layer) times up
    blocks::Activation activation = blocks::Activation::silu;
    const float* added = nullptr;     // added to the result: [rows, outs]; it may be `out`
};

/// x is [rows, ins]; all arrays are contiguous, all layers have the same inputs and level. Throws InputError for 0 or more than
/// 256 threads and layers that do not fit, and std::bad_alloc; before that nothing is written.
void multiply(std::span<const BlockProduct> products, const float* x, size_t rows, uint32_t threads);

// ---- several at once from a GGUF file, on several threads (block_file.cpp). It is read and not mapped: all of it is needed once, in
// another order, and a file that is cut meanwhile gives an error and not a signal.

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
