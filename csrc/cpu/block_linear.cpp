#include "cpu/block_linear.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "cpu/bfloat.hpp"
#include "cpu/panels.hpp"
#include "checks.hpp"

namespace foresay {
namespace {

using namespace blocks;

constexpr size_t kMost = size_t{1} << 24;  // inputs, outputs
constexpr size_t kShares = 8;              // that a thread takes, if all are equally fast
constexpr size_t kTeamWork = 48 << 10;     // products below which one thread is as fast

/// Memory for weights, which are many pieces of all sizes that live as long as their model: one behind the other in large pieces,
/// where an allocator for pieces that come and go would round each of them up.
std::shared_ptr<uint8_t> memory_for(size_t bytes) {
    struct Region {
        slab::Array<uint8_t> memory;
        size_t size, used;
    };
#ifdef FORESAY_SANITIZE
    constexpr size_t kRegion = 0;  // each by itself, so that the address sanitizer sees where it ends
#else
    constexpr size_t kRegion = size_t{8} << 20;
#endif
    static std::mutex mutex;
    static std::weak_ptr<Region> last;
    const size_t whole = (bytes + 63) / 64 * 64;
    const std::lock_guard lock(mutex);
    std::shared_ptr<Region> region = last.lock();
    if (!region || region->size - region->used < whole) {
        const size_t size = std::max(whole, kRegion);
        region = std::make_shared<Region>(Region{slab::make<uint8_t>(size), size, 0});
        last = region;
    }
    uint8_t* const piece = region->memory.get() + region->used;
    region->used += whole;
    return {std::move(region), piece};
}

/// The outputs, if `bytes` are theirs: checked before there is memory for them.
size_t outs_in(Format format, size_t bytes, size_t outs, size_t ins) {
    if (const size_t wanted = stored_bytes_of(format, outs, ins); bytes != wanted)
        throw InputError("weight has ", bytes, " bytes; ", shape_of({outs, ins}), " of ", facts_of(format).name, " has ", wanted);
    return outs;
}

void check(std::span<const BlockProduct> products, uint32_t threads) {
    check_products(products, threads, PanelCall<Job>::kMostProducts);
    for (const BlockProduct& p : products)
        if (p.up && (p.up->ins() != p.layer.ins() || p.up->outs() != p.layer.outs() || p.up->format() != p.layer.format()))
            throw InputError("up is ", shape_of(*p.up), " of ", facts_of(p.up->format()).name, "; its layer is ", shape_of(p.layer), " of ",
                             facts_of(p.layer.format()).name);
}

/// Rows in memory that the thread's next call uses again.
Rows quantised(const Kernel& kernel, const float* x, size_t rows, size_t ins, uint32_t threads) {
    const size_t blocks = rows * (ins / kBlock);
    const Rows all{slab::scratch<Rows, int8_t>(blocks * kBlock), slab::scratch<Rows, float>(2 * blocks), slab::scratch<Rows, float>(2 * blocks) + blocks,
                   slab::scratch<Rows, int32_t>(2 * blocks)};
    const Groups groups(rows, kernel.rows);
    by_rows(threads, groups.count, [&](size_t first, size_t end) {
        for (size_t group = first; group < end; ++group) {
            const size_t row = groups.first(group), count = groups.size(group);
            const Rows part = from_row(all, row, ins);
            for (size_t i = 0; i < count; ++i) kernel.quantise(x + (row + i) * ins, ins, part, i, count);
        }
    });
    return all;
}

}  // namespace

Format format_of(std::string_view name) {
    std::string known;
    for (size_t i = 0; i < kFormats; ++i) {
        if (name == kFacts[i].name) return static_cast<Format>(i);
        known += (i ? ", " : "") + std::string(kFacts[i].name);
    }
    throw InputError("the format is \"", name.substr(0, 40), "\"; expected ", known);
}

size_t stored_bytes_of(Format format, size_t outs, size_t ins) {
    const Facts& facts = facts_of(format);
    if (outs == 0 || outs > kMost || ins == 0 || ins > kMost)
        throw InputError("weight has the shape ", shape_of({outs, ins}), "; both are from 1 to ", kMost);
    if (ins % facts.numbers != 0) throw InputError("weight has rows of ", ins, " numbers; ", facts.name, " has blocks of ", facts.numbers);
    return outs * (ins / facts.numbers * facts.bytes);
}

void check_order(std::span<const int32_t> order, size_t outs) {
    if (!order.empty() && order.size() != outs) throw InputError("order has ", order.size(), " rows; expected ", outs);
    for (const int32_t row : order)
        if (row < 0 || static_cast<size_t>(row) >= outs) throw InputError("order has the row ", row, "; expected 0 to ", outs - 1);
}

BlockLinear::BlockLinear(Format format, size_t outs, size_t ins, std::span<const float> bias, const Kernels& level)
    : level_(&level), format_(format), ins_(ins), outs_(outs) {
    const Facts& facts = facts_of(format);
    stored_bytes_of(format, outs, ins);
    if (!bias.empty() && bias.size() != outs) throw InputError("bias has ", bias.size(), " numbers; expected ", outs);
    const Places places = places_of(format, level.blocks.outs);
    panel_bytes_ = is_quantised(format) ? ins / kBlock / places.supers * places.super_bytes : ins * level.blocks.outs * facts.bytes;
    panels_ = memory_for(panels() * panel_bytes_);
    bias_ = slab::make<float>(panels() * level.blocks.outs);
    std::fill_n(bias_.get(), panels() * level.blocks.outs, 0.0f);
    std::copy(bias.begin(), bias.end(), bias_.get());
}

BlockLinear::BlockLinear(Format format, std::span<const uint8_t> weight, size_t outs, size_t ins, std::span<const int32_t> order, std::span<const float> bias,
                         const Kernels& level)
    : BlockLinear(format, outs_in(format, weight.size(), outs, ins), ins, bias, level) {
    check_order(order, outs);
    const size_t wide = level.blocks.outs;
    std::vector<const uint8_t*> rows(wide);
    for (size_t panel = 0; panel < panels(); ++panel) {
        const size_t first = panel * wide, count = std::min(wide, outs - first);
        for (size_t i = 0; i < count; ++i) rows[i] = weight.data() + (order.empty() ? first + i : static_cast<size_t>(order[first + i])) * row_bytes();
        lay_out(panel, {rows.data(), count});
    }
}

void BlockLinear::lay_out(size_t panel, const StoredRows& rows) {
    const size_t wide = level_->blocks.outs, first = panel * wide;
    uint8_t* const to = panels_.get() + panel * panel_bytes_;
    if (rows.count < wide) std::memset(to, 0, panel_bytes_);  // the outputs that it lacks
    const Damage damage = blocks::lay_out(format_, rows, wide, ins_, level_->blocks.from_zero, to);
    if (!damage.found) return;
    const std::string place = std::to_string(damage.place), output = std::to_string(first + damage.output);
    if (is_quantised(format_)) throw InputError("block ", place, " of output ", output, " has a scale that is no number; the file is damaged");
    throw InputError("number ", place, " of output ", output, " is none; the file is damaged");
}

void BlockLinear::row(size_t out, float* to) const noexcept {
    const Facts& facts = facts_of(format_);
    const size_t wide = level_->blocks.outs, lane = out % wide, step = 4 * wide;
    const uint8_t* panel = panels_.get() + out / wide * panel_bytes_;
    if (!is_quantised(format_)) {
        for (size_t i = 0; i < ins_; ++i) {
            uint32_t bits = 0;
            std::memcpy(&bits, panel + (i * wide + lane) * facts.bytes, facts.bytes);
            to[i] = format_ == Format::f32 ? __builtin_bit_cast(float, bits) : format_ == Format::bf16 ? foresay::wide(static_cast<uint16_t>(bits)) : widen_half(static_cast<uint16_t>(bits));
        }
        return;
    }
    const Places places = places_of(format_, wide);
    const auto half = [&](const uint8_t* at) {
        uint16_t value;
        std::memcpy(&value, at + 2 * lane, sizeof value);
        return value;
    };
    Weights w{};
    for (size_t i = 0; i < ins_ / kBlock; ++i, to += kBlock) {
        if (facts.super && i % kSuper == 0) {
            w.scale = half(panel);
            if (facts.minimum) w.minimum = half(panel + 2 * wide);
            panel += places.header;
        }
        for (size_t j = 0; j < kBlock; ++j) {
            const size_t group = j / 4, at = lane * 4 + j % 4;
            uint32_t q = facts.low == 8 ? panel[group * step + at] ^ (level_->blocks.from_zero ? 0 : 0x80) : panel[group % 4 * step + at] >> (group < 4 ? 0 : 4) & 15;
            if (facts.high == 1) q |= (panel[places.high + at] >> group & 1) << 4;
            if (facts.high == 2) q |= (panel[places.high + group / 4 * step + at] >> 2 * (group % 4) & 3) << 4;
            w.q[j] = static_cast<uint8_t>(q);
        }
        if (facts.super) {
            w.fine[0] = panel[places.scale + lane], w.fine[1] = panel[places.minimum + lane];
        } else {
            w.scale = half(panel + places.scale);
            if (facts.minimum) w.minimum = half(panel + places.minimum);
        }
        widen(format_, w, to);
        panel += places.bytes;
    }
}

void multiply(std::span<const BlockProduct> products, const float* x, size_t rows, uint32_t threads) {
    check(products, threads);
    if (rows == 0) return;
    const size_t ins = products[0].layer.ins();
    const Kernel& kernel = products[0].layer.level().blocks;
    Rows q{};
    if (std::any_of(products.begin(), products.end(), [](const BlockProduct& p) { return is_quantised(p.layer.format()); }))
        q = quantised(kernel, x, rows, ins, threads);
    PanelCall<Job> call;
    size_t work = 0;
    for (const BlockProduct& p : products) {
        call.add(kernel.multiply[static_cast<size_t>(p.layer.format_)],
                 {p.layer.layer(), p.up ? p.up->layer() : Layer{}, p.activation, p.added, x, q, p.out, rows, ins, p.layer.outs_}, p.layer.panels());
        work += p.layer.outs_ * ins * rows * (p.up ? 2 : 1);
    }
    call.start(work < kTeamWork ? 1 : threads, kShares);
}

}  // namespace foresay
