// A layer of a decoder in one call, for the models that are built as most are:
//
//     x += out(attention(turned(norm(x))))       queries, keys and values by position, keys and values stored
//     x += down(silu(gate(norm(x))) * up(norm(x)))
//
// of bfloat16, rounded wherever a layer of its own would round. A row's bits depend on its text alone, as those of
// attention, linear layers and norms do.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cpu/attention.hpp"
#include "cpu/linear.hpp"

namespace foresay {

/// out = weight * round(x / sqrt(mean(x * x) + eps)), row by row, rounded to bfloat16 where the round() stands and at the
/// end, as transformers' layers do. x is [rows, width] with `step` numbers from row to row, out [rows, width] contiguous
/// and elsewhere, or x itself. A row's bits depend on that row alone, and are the same on every level.
void rms_norm(const layer::Kernel& kernel, const uint16_t* x, int64_t step, size_t rows, size_t width, const uint16_t* weight, float eps,
              uint16_t* out) noexcept;

class DecoderLayer {
public:
    /// A norm's weight, or nothing: no norm.
    struct Norm {
        std::vector<uint16_t> weight;
        float eps = 0;
    };
    struct Parts {
        std::shared_ptr<const Linear> query, key, value, out, gate, up, down;
        Norm before_attention, before_mlp;
        Norm of_queries, of_keys;  // of single heads
    };
    /// What a call is given beside the rows.
    struct Place {
        uint32_t layer;
        const uint16_t *cos, *sin;  // [rows, head], contiguous
        float scaling;
        uint32_t window, chunk, threads;
    };

    /// `head` is the width of a head, an even number. Throws InputError for parts that do not fit each other.
    DecoderLayer(Parts parts, size_t head);

    size_t width() const noexcept { return parts_.query->ins(); }
    size_t head() const noexcept { return head_; }

    /// x is [rows, width], contiguous, and is changed. Throws as AttentionStep::attend and multiply do; x is of no use then.
    void forward(AttentionStep& step, const Place& place, uint16_t* x, size_t rows) const;

private:
    Parts parts_;
    size_t head_;
};

}  // namespace foresay
