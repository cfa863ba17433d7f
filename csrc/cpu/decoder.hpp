// A whole decoder with weights in blocks: tokens in, logits out, in one call.
//
//     x = embedding(token)
//     x += out(attention(turned(norm(x))))                 for every layer
//     x += down(activation(gate(norm(x))) * up(norm(x)))
//     logits = head(norm(x))
//
// Rows are float32; keys, values and queries are bfloat16. A row's bits depend on its text alone, as those of attention, linear
// layers and norms do.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cpu/attention.hpp"
#include "cpu/block_linear.hpp"

namespace foresay {

class Decoder {
public:
    using Weights = std::shared_ptr<const BlockLinear>;
    using Norm = std::vector<float>;  // a norm's weight; empty: no norm
    struct Layer {
        Weights query, key, value, out, gate, up, down;
        Norm before_attention, before_mlp;
        Norm of_queries, of_keys;         // of single heads
        Norm after_attention, after_mlp;  // before the results are added
        uint32_t window = 0;              // 0: none
        uint32_t rope = 0;                // which frequencies
    };
    struct Settings {
        size_t head;        // width of a head
        float eps, scaling;  // of norms; of scores
        blocks::Activation activation = blocks::Activation::silu;
        float embedding_scale = 1, rope_scale = 1;
        float score_cap = 0, logit_cap = 0;           // 0: none
        std::vector<std::vector<float>> frequencies;  // by which a position is multiplied: half as many as numbers are turned
    };

    /// `head` may be null: it is the embedding then. Throws InputError for parts that do not fit each other.
    Decoder(Weights embedding, std::vector<Layer> layers, Norm norm, Weights head, Settings settings);

    size_t width() const noexcept { return embedding_->ins(); }
    size_t vocabulary() const noexcept { return head_->outs(); }
    size_t bytes() const noexcept;
    /// Heads of keys and values, width of a key, width of a value, of each layer.
    std::vector<KvLayer> shapes() const;

    /// One token for each of the step's rows; `needed` are the rows whose logits are written, [needed, vocabulary], and whose
    /// last hidden states, if `hidden` is not null, [needed, width]. Throws InputError for tokens and rows that do not exist, and
    /// as AttentionStep::attend does; what was to be written is of no use then.
    void forward(AttentionStep& step, std::span<const int32_t> tokens, std::span<const int64_t> needed, float* logits, float* hidden, uint32_t threads) const;

private:
    struct Pass;
    void norm_rows(const Norm& norm, const Pass& pass) const;
    void add_result(const BlockLinear& linear, const Norm& after, const float* rows, const Pass& pass) const;
    void attend(const Layer& layer, uint32_t index, const Pass& pass) const;
    void transform(const Layer& layer, const Pass& pass) const;

    Weights embedding_, head_;
    std::vector<Layer> layers_;
    Norm norm_;
    Settings settings_;
};

}  // namespace foresay
