#include "cpu/decoder.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "threads.hpp"
#include "checks.hpp"
#include "slab.hpp"

namespace foresay {

/// The rows of one call, in memory that the thread's next call uses again.
struct Decoder::Pass {
    AttentionStep& step;
    const row::Kernel& kernel;
    size_t rows;
    uint32_t threads;
    float *x, *normed, *between;                // [rows, width]; [rows, the most of a layer]
    const float *cos, *sin;                     // [kind of rope, rows, half]
    uint16_t *narrow_query, *narrow_key, *narrow_value, *seen;
};

Decoder::Decoder(Weights embedding, std::vector<Layer> layers, Norm norm, Weights head, Settings settings)
    : embedding_(std::move(embedding)), head_(head ? std::move(head) : embedding_), layers_(std::move(layers)), norm_(std::move(norm)), settings_(std::move(settings)) {
    if (!embedding_) throw InputError("the embedding is None; expected its weights");
    const size_t wide = settings_.head;
    if (wide == 0 || wide % 2 != 0) throw InputError("a head has the width ", wide, "; expected an even number");
    if (settings_.frequencies.empty()) throw InputError("there are no frequencies; expected at least one list");
    for (const auto& list : settings_.frequencies)
        if (list.size() > wide / 2 || list.size() != settings_.frequencies[0].size())
            throw InputError("there are ", list.size(), " frequencies; expected at most ", wide / 2, ", and as many in every list");
    check_width("the last norm", norm_.size(), width()), check_width("the head", head_->ins(), width());
    if (&head_->level() != &embedding_->level()) throw InputError("the head is of another level; all are of one");
    for (size_t i = 0; i < layers_.size(); ++i) {
        const Layer& l = layers_[i];
        const std::string at = " of layer " + std::to_string(i);
        for (const BlockLinear* part : {l.query.get(), l.key.get(), l.value.get(), l.out.get(), l.gate.get(), l.up.get(), l.down.get()}) {
            if (!part) throw InputError("a linear layer", at, " is None; expected all seven");
            if (&part->level() != &embedding_->level()) throw InputError("a linear layer", at, " is of another level; all are of one");
        }
        if (l.up->format() != l.gate->format())  // which are multiplied together
            throw InputError("the gate", at, " is of ", blocks::facts_of(l.gate->format()).name, ", the up of ",
                             blocks::facts_of(l.up->format()).name, "; expected one format");
        if (l.query->outs() % wide != 0 || l.key->outs() % wide != 0)
            throw InputError("the queries and keys", at, " have the widths ", l.query->outs(), " and ", l.key->outs(),
                             "; expected multiples of ", wide, ", the width of a head");
        if (l.key->outs() == 0 || l.query->outs() % l.key->outs() != 0)
            throw InputError("the queries", at, " have the width ", l.query->outs(), "; expected a multiple of ", l.key->outs(),
                             ", that of the keys");
        check_width("the query" + at, l.query->ins(), width()), check_width("the key" + at, l.key->ins(), width());
        check_width("the value" + at, l.value->ins(), width()), check_width("the value" + at, l.value->outs(), l.key->outs());
        check_width("the out" + at, l.out->ins(), l.query->outs()), check_width("the out" + at, l.out->outs(), width());
        check_width("the gate" + at, l.gate->ins(), width()), check_width("the up" + at, l.up->ins(), width());
        check_width("the up" + at, l.up->outs(), l.gate->outs()), check_width("the down" + at, l.down->ins(), l.gate->outs());
        check_width("the down" + at, l.down->outs(), width());
        check_width("the norm before attention" + at, l.before_attention.size(), width()), check_width("the norm before the products" + at, l.before_mlp.size(), width());
        for (const Norm* of : {&l.of_queries, &l.of_keys})
            if (!of->empty()) check_width("the norm of a head" + at, of->size(), wide);
        for (const Norm* after : {&l.after_attention, &l.after_mlp})
            if (!after->empty()) check_width("the norm of a result" + at, after->size(), width());
        if (l.rope >= settings_.frequencies.size()) throw InputError("the frequencies", at, " are those of list ", l.rope, ", which is not there");
    }
}

size_t Decoder::bytes() const noexcept {
    size_t sum = embedding_->bytes() + (head_ == embedding_ ? 0 : head_->bytes());
    for (const Layer& l : layers_)
        for (const BlockLinear* part : {l.query.get(), l.key.get(), l.value.get(), l.out.get(), l.gate.get(), l.up.get(), l.down.get()}) sum += part->bytes();
    return sum;
}

std::vector<KvLayer> Decoder::shapes() const {
    std::vector<KvLayer> found;
    const auto wide = static_cast<uint32_t>(settings_.head);
    for (const Layer& l : layers_) found.push_back({static_cast<uint32_t>(l.key->outs()) / wide, wide, wide});
    return found;
}

void Decoder::norm_rows(const Norm& norm, const Pass& p) const {
    by_rows(p.threads, p.rows, [&](size_t first, size_t end) {
        for (size_t row = first; row < end; ++row) p.kernel.norm(p.x + row * width(), width(), norm.data(), settings_.eps, p.normed + row * width());
    });
}

/// Adds what a linear layer makes of rows, or the norm of that.
void Decoder::add_result(const BlockLinear& linear, const Norm& after, const float* rows, const Pass& p) const {
    const BlockProduct product = after.empty() ? BlockProduct{linear, p.x, nullptr, {}, p.x} : BlockProduct{linear, p.normed};
    multiply({&product, 1}, rows, p.rows, p.threads);
    for (size_t row = 0; !after.empty() && row < p.rows; ++row) {
        float *const result = p.normed + row * width(), *const x = p.x + row * width();
        p.kernel.norm(result, width(), after.data(), settings_.eps, result);
        for (size_t i = 0; i < width(); ++i) x[i] += result[i];
    }
}

void Decoder::attend(const Layer& l, uint32_t index, const Pass& p) const {
    const size_t wide = settings_.head, queries = l.query->outs(), keys = l.key->outs(), heads = queries / wide, key_heads = keys / wide;
    const size_t half = settings_.frequencies[0].size();
    float *const q = p.between, *const k = q + p.rows * queries, *const v = k + p.rows * keys;
    norm_rows(l.before_attention, p);
    const BlockProduct projected[] = {{*l.query, q}, {*l.key, k}, {*l.value, v}};
    multiply(projected, p.normed, p.rows, p.threads);
    by_rows(p.threads, p.rows, [&](size_t first, size_t end) {
        const auto place_heads = [&](float* x, size_t count, const Norm& norm, size_t row) {
            for (size_t i = 0; !norm.empty() && i < count; ++i) p.kernel.norm(x + i * wide, wide, norm.data(), settings_.eps, x + i * wide);
            const size_t at = (l.rope * p.rows + row) * half;
            p.kernel.turn(x, count, wide, half, p.cos + at, p.sin + at);
        };
        for (size_t row = first; row < end; ++row) {
            place_heads(q + row * queries, heads, l.of_queries, row), place_heads(k + row * keys, key_heads, l.of_keys, row);
            p.kernel.narrow(q + row * queries, queries, p.narrow_query + row * queries);
            p.kernel.narrow(k + row * keys, keys, p.narrow_key + row * keys), p.kernel.narrow(v + row * keys, keys, p.narrow_value + row * keys);
        }
    });
    p.step.attend({index, Numbers::by_heads(p.narrow_query, p.rows, heads, wide), Numbers::by_heads(p.narrow_key, p.rows, key_heads, wide),
                   Numbers::by_heads(p.narrow_value, p.rows, key_heads, wide), Numbers::by_rows(p.seen, p.rows, heads, wide), settings_.scaling,
                   l.window, 0, settings_.score_cap, nullptr, 0, p.threads});
    p.kernel.widen(p.seen, p.rows * queries, q);
    add_result(*l.out, l.after_attention, q, p);
}

void Decoder::transform(const Layer& l, const Pass& p) const {
    norm_rows(l.before_mlp, p);
    const BlockProduct gated{*l.gate, p.between, l.up.get(), settings_.activation};
    multiply({&gated, 1}, p.normed, p.rows, p.threads);
    add_result(*l.down, l.after_mlp, p.between, p);
}

void Decoder::forward(AttentionStep& step, std::span<const int32_t> tokens, std::span<const int64_t> needed, float* logits, float* hidden, uint32_t threads) const {
    const std::span<const int64_t> positions = step.positions();
    const size_t rows = tokens.size(), half = settings_.frequencies[0].size();
    check_threads(threads);
    if (step.dtype() != Dtype::bfloat16) throw InputError("the step is of float32; expected bfloat16");
    if (positions.size() != rows) throw InputError("there are ", rows, " tokens; the step has ", positions.size(), " rows");
    for (const int32_t token : tokens)
        if (token < 0 || static_cast<size_t>(token) >= embedding_->outs())
            throw InputError("token ", token, " is not in the vocabulary; expected 0 to ", embedding_->outs() - 1);
    for (const int64_t row : needed)
        if (row < 0 || static_cast<size_t>(row) >= rows) throw InputError("row ", row, " is needed; there are ", rows);

    size_t queries = 0, keys = 0, inner = 0;
    for (const Layer& l : layers_) queries = std::max(queries, l.query->outs()), keys = std::max(keys, l.key->outs()), inner = std::max(inner, l.gate->outs());
    const size_t between = std::max(queries + 2 * keys, inner), turned = settings_.frequencies.size() * rows * half, heads = std::max(rows, needed.size());
    float* const floats = slab::scratch<Decoder, float>(rows * (width() + between) + heads * width() + 2 * turned);
    uint16_t* const narrow = slab::scratch<Decoder, uint16_t>(rows * (2 * queries + 2 * keys));
    float *const cos = floats + rows * (width() + between) + heads * width(), *const sin = cos + turned;
    for (size_t list = 0; list < settings_.frequencies.size(); ++list)
        for (size_t row = 0; row < rows; ++row)
            for (size_t i = 0; i < half; ++i) {
                const double angle = static_cast<double>(positions[row]) * settings_.frequencies[list][i];
                cos[(list * rows + row) * half + i] = static_cast<float>(std::cos(angle)) * settings_.rope_scale;
                sin[(list * rows + row) * half + i] = static_cast<float>(std::sin(angle)) * settings_.rope_scale;
            }
    const Pass pass{step, embedding_->level().row, rows, threads, floats, floats + rows * (width() + between), floats + rows * width(), cos, sin,
                    narrow, narrow + rows * queries, narrow + rows * (queries + keys), narrow + rows * (queries + 2 * keys)};
    for (size_t row = 0; row < rows; ++row) {
        float* const x = pass.x + row * width();
        embedding_->row(static_cast<size_t>(tokens[row]), x);
        for (size_t i = 0; settings_.embedding_scale != 1 && i < width(); ++i) x[i] *= settings_.embedding_scale;
    }
    for (uint32_t i = 0; i < layers_.size(); ++i) attend(layers_[i], i, pass), transform(layers_[i], pass);
    if (needed.empty()) return;
    float* const last = hidden ? hidden : pass.normed;
    for (size_t i = 0; i < needed.size(); ++i)
        pass.kernel.norm(pass.x + static_cast<size_t>(needed[i]) * width(), width(), norm_.data(), settings_.eps, last + i * width());
    const BlockProduct made{*head_, logits};
    multiply({&made, 1}, last, needed.size(), threads);
    if (settings_.logit_cap > 0)
        for (size_t i = 0; i < needed.size() * vocabulary(); ++i) logits[i] = settings_.logit_cap * std::tanh(logits[i] / settings_.logit_cap);
}

}  // namespace foresay
