// Three ways to use several threads, the caller's among them.
//
//   on_team()      for kernels: OpenMP's team if the process has one, as torch's workers spin for a while after each piece of
//                  work and threads of our own would have to share the cores with them; else the pool
//   in_pieces()    for work of a fraction of a millisecond: the pool. Its threads are kept and can be woken before the work is
//                  ready; they take pieces one by one, and the caller takes the rest
//   in_parallel()  for long work: threads that live for one call
//
// Nobody waits for a thread of the pool that has not begun: where no processor is free, after a fork, or while the pool works for
// another caller, it is as if there were none.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace foresay {

/// Calls work(data) on up to `threads` threads, the caller's among them, and waits for all. `work` must not throw, and has
/// to be right whatever the number of threads that call it; 1 at least does.
void on_team(uint32_t threads, void (*work)(void*), void* data) noexcept;
/// The same on the pool.
void on_pool(uint32_t threads, void (*work)(void*), void* data) noexcept;
/// Wakes the pool for work that follows within some tens of microseconds.
void wake_pool(uint32_t threads) noexcept;

/// Calls work(first, end) for parts of the rows, on the team where there are many.
template <class Work>
void by_rows(uint32_t threads, size_t rows, const Work& work) {
    constexpr size_t kMany = 64, kShare = 16;  // rows that are worth a team; rows that a thread takes at a time
    if (threads == 1 || rows < kMany) return work(size_t{0}, rows);
    struct Call {
        const Work& work;
        size_t rows;
        std::atomic<size_t> next = 0;
    } call{work, rows};
    on_team(threads, [](void* data) {
        auto& [work, rows, next] = *static_cast<Call*>(data);
        for (size_t first; (first = next.fetch_add(kShare)) < rows;) work(first, std::min(rows, first + kShare));
    }, &call);
}

/// Calls work(piece, member) for each piece below `pieces` on the pool; `member` tells the threads apart and is below `threads`.
/// The first exception is thrown again.
template <class Work>
void in_pieces(uint32_t threads, uint32_t pieces, const Work& work) {
    struct Call {
        const Work& work;
        uint32_t threads, pieces;
        std::atomic<uint32_t> members = 0, taken = 0;
        std::mutex guard;
        std::exception_ptr failure = nullptr;
    } call{work, threads, pieces};
    on_pool(threads, [](void* data) {
        auto& [work, threads, pieces, members, taken, guard, failure] = *static_cast<Call*>(data);
        const uint32_t member = members++;
        if (member >= threads) return;
        for (uint32_t piece; (piece = taken++) < pieces;) try {
            work(piece, member);
        } catch (...) {
            const std::lock_guard lock(guard);
            if (!failure) failure = std::current_exception();
        }
    }, &call);
    if (call.failure) std::rethrow_exception(call.failure);
}

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
