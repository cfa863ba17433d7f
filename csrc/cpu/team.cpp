#include "cpu/team.hpp"

#include <dlfcn.h>

#include <atomic>
#include <thread>
#include <vector>

namespace foresay {
namespace {

using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);  // how code that GCC compiled starts a team
std::atomic<Parallel> parallel = nullptr;

/// What the members of an OpenMP team are given. A team waits for each other as it likes; that everything before is seen by
/// all members, and everything that they did by what comes after, is said here in C++'s own words: the thread sanitizer
/// (make tsan) cannot look into libgomp, and would take all of it for races.
struct Given {
    void (*work)(void*);
    void* data;
    std::atomic<bool> begun = false;
    std::atomic<uint32_t> ended = 0;

    static void run(void* given) {
        auto& [work, data, begun, ended] = *static_cast<Given*>(given);
        (void)begun.load(std::memory_order_acquire);
        work(data);
        ended.fetch_add(1, std::memory_order_release);
    }
};

}  // namespace

bool team_found() noexcept {
    if (parallel.load(std::memory_order_relaxed)) return true;
    void* const found = dlsym(RTLD_DEFAULT, "GOMP_parallel");
    if (found) parallel.store(reinterpret_cast<Parallel>(found), std::memory_order_relaxed);
    return found != nullptr;
}

void on_team(uint32_t threads, void (*work)(void*), void* data) noexcept {
    if (threads <= 1) return work(data);
    if (const Parallel start = parallel.load(std::memory_order_relaxed)) {
        Given given{work, data};
        given.begun.store(true, std::memory_order_release);
        start(Given::run, &given, threads, 0);
        (void)given.ended.load(std::memory_order_acquire);
        return;
    }
    std::vector<std::jthread> others;
    try {
        for (uint32_t i = 1; i < threads; ++i) others.emplace_back(work, data);
    } catch (...) {  // no more threads to be had: those that there are do it
    }
    work(data);
}

}  // namespace foresay
