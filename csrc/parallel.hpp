// Runs one function on several threads, the caller's among them.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace foresay {

/// Calls work(thread) for thread = 0 .. threads - 1, 0 on the calling thread, and waits for all. If any throws,
/// `stop` is raised, which the others should heed, and the first exception is thrown again.
template <class Work>
void in_parallel(uint32_t threads, std::atomic<bool>& stop, Work&& work) {
    std::exception_ptr failure;
    std::mutex guard;
    const auto guarded = [&](uint32_t thread) {
        try {
            work(thread);
        } catch (...) {
            stop = true;
            const std::lock_guard lock(guard);
            if (!failure) failure = std::current_exception();
        }
    };
    std::vector<std::jthread> others;
    for (uint32_t thread = 1; thread < threads; ++thread) {
        try {
            others.emplace_back(guarded, thread);
        } catch (...) {
            guarded(thread);  // no more threads to be had: do the work here
        }
    }
    guarded(0);
    others.clear();
    if (failure) std::rethrow_exception(failure);
}

}  // namespace foresay
