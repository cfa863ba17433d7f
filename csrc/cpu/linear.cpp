#include "cpu/linear.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "checks.hpp"
#include "cpu/panels.hpp"

namespace foresay {
namespace {

using linear::Job, linear::Stored, linear::kDepth, linear::kPanel, linear::kTile;

constexpr size_t kMost = size_t{1} << 24;  // inputs, outputs
constexpr size_t kShares = 4;              // that a thread takes, if all are equally fast
constexpr size_t kTeamWork = 64 << 10;     // numbers of weights, as often as read, below which one thread is as fast

void check(std::span<const Product> products, uint32_t threads) {
    check_products(products, threads, PanelCall<Job>::kMostProducts);
    for (const auto& [layer, out, up, added] : products)
        if (up && (up->ins() != layer.ins() || up->outs() != layer.outs()))
            throw InputError("up has the shape ", shape_of(*up), "; its layer has ", shape_of(layer));
}

}  // namespace

Linear::Linear(const uint16_t* weight, size_t outs, size_t ins, int64_t out_stride, int64_t in_stride, const uint16_t* bias, int64_t bias_stride,
               const Kernels& level)
    : level_(&level), ins_(ins), outs_(outs), depth_((ins + kDepth - 1) / kDepth), panels_((outs + kPanel - 1) / kPanel) {
    if (outs == 0 || outs > kMost || ins == 0 || ins > kMost)
        throw InputError("weight has the shape ", shape_of({outs, ins}), "; both are from 1 to ", kMost);
    weight_ = slab::make<uint16_t>(panels_ * depth_ * 2 * kTile);
    bias_ = slab::make<float>(panels_ * kPanel);
    const auto at = [&](size_t out, size_t in) { return weight[static_cast<int64_t>(out) * out_stride + static_cast<int64_t>(in) * in_stride]; };
    uint16_t* to = weight_.get();
    for (size_t panel = 0; panel < panels_; ++panel)
        for (size_t in = 0; in < depth_ * kDepth; in += kDepth)
            for (size_t first = panel * kPanel; first < (panel + 1) * kPanel; first += 16, to += kTile) {
                const size_t rows = first < outs ? std::min<size_t>(16, outs - first) : 0, columns = std::min(kDepth, ins - in);
                if (rows < 16 || columns < kDepth) std::memset(to, 0, kTile * sizeof(uint16_t));
                for (size_t row = 0; row < rows; ++row)
                    for (size_t i = 0; i < columns; ++i) to[i / 2 * 32 + row * 2 + i % 2] = at(first + row, in + i);
            }
    for (size_t i = 0; i < panels_ * kPanel; ++i) {
        const uint32_t bits = bias && i < outs ? uint32_t{bias[static_cast<int64_t>(i) * bias_stride]} << 16 : 0;
        std::memcpy(&bias_[i], &bits, sizeof(bits));
    }
}

void multiply(std::span<const Product> products, const uint16_t* x, int64_t step, size_t rows, uint32_t threads) {
    check(products, threads);
    if (rows == 0) return;
    const size_t ins = products[0].layer.ins_, depth = products[0].layer.depth_;
    const size_t whole = depth * kDepth;
    const linear::Kernel& kernel = products[0].layer.level().linear;
    const float* packed = nullptr;
    if (kernel.pack) {
        float* const space = slab::scratch<Linear, float>(rows * whole);
        kernel.pack(x, step, rows, ins, depth, space);
        packed = space;
    } else if (whole != ins) {  // what stands behind a row may be no number, and 0 times that is none
        uint16_t* const filled = slab::scratch<Linear, uint16_t>(rows * whole);
        for (size_t row = 0; row < rows; ++row) {
            std::memcpy(filled + row * whole, x + static_cast<int64_t>(row) * step, ins * sizeof(uint16_t));
            std::memset(filled + row * whole + ins, 0, (whole - ins) * sizeof(uint16_t));
        }
        x = filled, step = static_cast<int64_t>(whole);
    }
    PanelCall<Job> call;
    size_t read = 0;
    const auto stored = [](const Linear* layer) { return layer ? Stored{layer->weight_.get(), layer->bias_.get()} : Stored{}; };
    for (const Product& p : products) {
        call.add(kernel.multiply, {stored(&p.layer), stored(p.up), p.added, x, packed, p.out, step, rows, depth, p.layer.outs_}, p.layer.panels_);
        read += p.layer.panels_ * (p.up ? 2 : 1);
    }
    const size_t work = read * depth * 2 * kTile * ((rows + kernel.rows - 1) / kernel.rows);
    call.start(work < kTeamWork ? 1 : threads, kShares);
}

}  // namespace foresay
