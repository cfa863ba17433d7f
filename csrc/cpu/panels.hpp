// Several products of the same rows in one call: their panels stand in one row, of which threads take shares.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "checks.hpp"
#include "threads.hpp"

namespace foresay {

template <class Layer>
std::string shape_of(const Layer& layer) { return shape_of({layer.outs(), layer.ins()}); }

/// Refuses layers that cannot share rows, but for the size of their `up`. Throws InputError.
template <class Product>
void check_products(std::span<const Product> products, uint32_t threads, size_t most) {
    check_threads(threads);
    if (products.empty() || products.size() > most)
        throw InputError("there are ", products.size(), " products; expected 1 to ", most);
    const auto& first = products[0].layer;
    for (const Product& product : products) {
        for (const auto* const other : {&product.layer, product.up})
            if (other && &other->level() != &first.level())
                throw InputError("a layer is laid out for ", other->level().name, ", another for ", first.level().name, "; all are of one level");
        if (product.layer.ins() != first.ins())
            throw InputError("a layer has the shape ", shape_of(product.layer), "; its inputs are those of ", shape_of(first));
    }
}

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
    /// On `threads`, of which each takes about `shares` shares if all are equally fast.
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
