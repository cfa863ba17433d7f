#include "linear.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>

#include "errors.hpp"
#include "linear_kernel.hpp"
#include "machine.hpp"
#include "team.hpp"

namespace foresay {
namespace {

using linear::Job, linear::kDepth, linear::kPanel, linear::kTile, linear::kTiles;

constexpr size_t kMost = size_t{1} << 24;  // inputs, outputs
constexpr size_t kShares = 4;              // that a thread takes, if all are equally fast
constexpr size_t kTeamWork = 64 << 10, kThreadWork = 4 << 20;  // numbers of weights, as often as read, below which one thread is as fast

/// Memory of the calling thread that its calls use again and again.
uint16_t* scratch_for(size_t numbers) {
    thread_local slab::Array<uint16_t> memory;
    if (memory.get_deleter().count < numbers) {
        memory.reset();
        memory = slab::make<uint16_t>(numbers);
    }
    return memory.get();
}

struct Call {
    Job job;
    size_t panels, share;
    std::atomic<size_t> next = 0;

    void run() noexcept {
        for (size_t first; (first = next.fetch_add(share)) < panels;) kTiles.multiply(job, first, std::min(panels, first + share));
    }
};

}  // namespace

const char* linear_level() {
    static const bool there = kTiles.name && has_tiles();
    return there ? kTiles.name : nullptr;
}

Linear::Linear(const uint16_t* weight, size_t outs, size_t ins, int64_t out_stride, int64_t in_stride, const uint16_t* bias, int64_t bias_stride)
    : ins_(ins), outs_(outs), depth_((ins + kDepth - 1) / kDepth), panels_((outs + kPanel - 1) / kPanel) {
    if (!linear_level()) throw InputError("this machine has no matrix tiles of bfloat16; linear_level() says whether it has");
    if (outs == 0 || outs > kMost || ins == 0 || ins > kMost)
        throw InputError("weight has the shape [" + std::to_string(outs) + ", " + std::to_string(ins) + "]; both are from 1 to " + std::to_string(kMost));
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

void Linear::multiply(const uint16_t* x, int64_t step, size_t rows, uint16_t* out, uint32_t threads) const {
    if (threads == 0 || threads > 256) throw InputError("threads is " + std::to_string(threads) + "; it is from 1 to 256");
    if (rows == 0) return;
    if (const size_t whole = depth_ * kDepth; whole != ins_) {  // what stands behind a row may be no number, and 0 times that is none
        uint16_t* const filled = scratch_for(rows * whole);
        for (size_t row = 0; row < rows; ++row) {
            std::memcpy(filled + row * whole, x + static_cast<int64_t>(row) * step, ins_ * sizeof(uint16_t));
            std::memset(filled + row * whole + ins_, 0, (whole - ins_) * sizeof(uint16_t));
        }
        x = filled, step = static_cast<int64_t>(whole);
    }
    const size_t work = panels_ * depth_ * 2 * kTile * ((rows + 15) / 16);
    if (work < (team_found() ? kTeamWork : kThreadWork)) threads = 1;
    Call call{{weight_.get(), bias_.get(), x, out, step, rows, depth_, outs_}, panels_, (panels_ + kShares * threads - 1) / (kShares * threads)};
    if (threads == 1) call.share = panels_;
    on_team(threads, [](void* data) { static_cast<Call*>(data)->run(); }, &call);
}

}  // namespace foresay
