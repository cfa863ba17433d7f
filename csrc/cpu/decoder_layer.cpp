#include "cpu/decoder_layer.hpp"

#include <algorithm>
#include <string>

#include "checks.hpp"
#include "slab.hpp"
#include "threads.hpp"

namespace foresay {

void rms_norm(const layer::Kernel& kernel, const uint16_t* x, int64_t step, size_t rows, size_t width, const uint16_t* weight, float eps,
              uint16_t* out) noexcept {
    for (size_t row = 0; row < rows; ++row) kernel.norm(x + static_cast<int64_t>(row) * step, width, weight, eps, out + row * width);
}

DecoderLayer::DecoderLayer(Parts parts, size_t head) : parts_(std::move(parts)), head_(head) {
    const Parts& p = parts_;
    for (const Linear* layer : {p.query.get(), p.key.get(), p.value.get(), p.out.get(), p.gate.get(), p.up.get(), p.down.get()})
        if (!layer) throw InputError("a linear layer is None; expected all seven");
    if (head == 0 || head % 2 != 0 || p.query->outs() % head != 0 || p.key->outs() % head != 0)
        throw InputError("a head has the width ", head, "; expected an even divisor of ", p.query->outs(), " queries and ", p.key->outs(), " keys");
    check_width("key", p.key->ins(), width()), check_width("value", p.value->ins(), width());
    check_width("value", p.value->outs(), p.key->outs());
    check_width("out", p.out->ins(), p.query->outs()), check_width("out", p.out->outs(), width());
    check_width("gate", p.gate->ins(), width()), check_width("up", p.up->ins(), width()), check_width("up", p.up->outs(), p.gate->outs());
    check_width("down", p.down->ins(), p.gate->outs()), check_width("down", p.down->outs(), width());
    check_width("the norm before attention", p.before_attention.weight.size(), width());
    check_width("the norm before the products", p.before_mlp.weight.size(), width());
    for (const Norm* norm : {&p.of_queries, &p.of_keys})
        if (!norm->weight.empty()) check_width("the norm of a head", norm->weight.size(), head);
}

void DecoderLayer::forward(AttentionStep& step, const Place& place, uint16_t* x, size_t rows) const {
    const auto& [query, key, value, out, gate, up, down, before_attention, before_mlp, of_queries, of_keys] = parts_;
    const layer::Kernel& kernel = query->level().layer;
    const size_t queries = query->outs(), keys = key->outs(), inner = gate->outs(), heads = queries / head_, key_heads = keys / head_;
    uint16_t* const normed = slab::scratch<DecoderLayer, uint16_t>(rows * (width() + std::max(2 * queries + 2 * keys, inner)));
    uint16_t* const q = normed + rows * width();
    uint16_t *const k = q + rows * queries, *const v = k + rows * keys, *const seen = v + rows * keys, *const between = q;
    const auto norm_rows = [&](const Norm& norm) {
        by_rows(place.threads, rows, [&](size_t first, size_t end) {
            const size_t at = first * width();
            rms_norm(kernel, x + at, static_cast<int64_t>(width()), end - first, width(), norm.weight.data(), norm.eps, normed + at);
        });
    };

    norm_rows(before_attention);
    const Product projected[] = {{*query, q}, {*key, k}, {*value, v}};
    multiply(projected, normed, static_cast<int64_t>(width()), rows, place.threads);
    by_rows(place.threads, rows, [&](size_t first, size_t end) {
        const auto place_heads = [&](uint16_t* row, size_t count, const Norm& norm, size_t at) {
            if (!norm.weight.empty()) rms_norm(kernel, row, static_cast<int64_t>(head_), count, head_, norm.weight.data(), norm.eps, row);
            kernel.turn(row, count, head_, place.cos + at * head_, place.sin + at * head_);
        };
        for (size_t row = first; row < end; ++row) {
            place_heads(q + row * queries, heads, of_queries, row);
            place_heads(k + row * keys, key_heads, of_keys, row);
        }
    });
    step.attend({place.layer, Numbers::by_heads(q, rows, heads, head_), Numbers::by_heads(k, rows, key_heads, head_),
                 Numbers::by_heads(v, rows, key_heads, head_), Numbers::by_rows(seen, rows, heads, head_), place.scaling, place.window,
                 place.chunk, 0, nullptr, 0, place.threads});
    const Product returned{*out, x, nullptr, x};
    multiply({&returned, 1}, seen, static_cast<int64_t>(queries), rows, place.threads);

    norm_rows(before_mlp);
    const Product gated{*gate, between, up.get()};
    multiply({&gated, 1}, normed, static_cast<int64_t>(width()), rows, place.threads);
    const Product added{*down, x, nullptr, x};
    multiply({&added, 1}, between, static_cast<int64_t>(inner), rows, place.threads);
}

}  // namespace foresay
