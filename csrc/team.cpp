#include "team.hpp"

#include <dlfcn.h>

#include <atomic>
#include <thread>
#include <vector>

namespace foresay {
namespace {

using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);  // how code that GCC compiled starts a team
std::atomic<Parallel> parallel = nullptr;

}  // namespace

bool team_found() noexcept {
    if (parallel.load(std::memory_order_relaxed)) return true;
    void* const found = dlsym(RTLD_DEFAULT, "GOMP_parallel");
    if (found) parallel.store(reinterpret_cast<Parallel>(found), std::memory_order_relaxed);
    return found != nullptr;
}

void on_team(uint32_t threads, void (*work)(void*), void* data) noexcept {
    if (threads <= 1) return work(data);
    if (const Parallel start = parallel.load(std::memory_order_relaxed)) return start(work, data, threads, 0);
    std::vector<std::jthread> others;
    try {
        for (uint32_t i = 1; i < threads; ++i) others.emplace_back(work, data);
    } catch (...) {  // no more threads to be had: those that there are do it
    }
    work(data);
}

}  // namespace foresay
