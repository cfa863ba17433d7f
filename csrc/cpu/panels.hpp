// Several products of the same rows in one call: their panels stand in one row, of which threads take shares.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "threads.hpp"

namespace foresay {

template <class Job>
struct PanelCall {
    static constexpr size_t kMostProducts = 4;
    struct Part {
        void (*multiply)(const Job&, size_t first, size_t end) noexcept;
        Job job;
        size_t end;  // of its panels
    } parts[kMostProducts];
    size_t count = 0, share = 0;
    std::atomic<size_t> next = 0;

    size_t panels() const noexcept { return count ? parts[count - 1].end : 0; }
    void add(void (*multiply)(const Job&, size_t, size_t) noexcept, const Job& job, size_t of) {
        const size_t end = panels() + of;
        parts[count++] = {multiply, job, end};
    }
    /// On so many threads, of which each takes about `shares` shares if all are equally fast.
    void start(uint32_t threads, size_t shares) {
        share = threads == 1 ? panels() : (panels() + shares * threads - 1) / (shares * threads);
        on_team(threads, [](void* data) { static_cast<PanelCall*>(data)->run(); }, this);
    }

private:
    void run() noexcept {
        for (size_t first; (first = next.fetch_add(share, std::memory_order_relaxed)) < panels();) {
            const size_t end = std::min(panels(), first + share);
            for (size_t i = 0, begin = 0; i < count; begin = parts[i++].end)
                if (const size_t low = std::max(first, begin), high = std::min(end, parts[i].end); low < high)
                    parts[i].multiply(parts[i].job, low - begin, high - begin);
        }
    }
};

}  // namespace foresay
