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

/// Pieces of work that threads take one by one. After the first exception no more are taken; it is thrown again at the end.
template <class Work>
struct Pieces {
    const Work& work;  // work(piece, member); `member` tells the threads apart and is below `threads`
    uint32_t threads;
    size_t count;
    std::atomic<uint32_t> members = 0;
    std::atomic<size_t> taken = 0;
    std::atomic<bool> stop = false;
    std::mutex guard{};
    std::exception_ptr failure = nullptr;

    void take(uint32_t member) noexcept {
        if (member >= threads) return;
        try {
            for (size_t piece; !stop && (piece = taken++) < count;) work(piece, member);
        } catch (...) {
            stop = true;
            const std::lock_guard lock(guard);
            if (!failure) failure = std::current_exception();
        }
    }
    void end() const {
        if (failure) std::rethrow_exception(failure);
    }
};

/// Calls work(piece, member) for each piece below `count` on the pool.
template <class Work>
void in_pieces(uint32_t threads, size_t count, const Work& work) {
    Pieces<Work> pieces{work, threads, count};
    on_pool(threads, [](void* data) {
        auto* const pieces = static_cast<Pieces<Work>*>(data);
        pieces->take(pieces->members++);
    }, &pieces);
    pieces.end();
}

/// The same on threads that live for this call; member 0 is the calling thread.
template <class Work>
void in_parallel(uint32_t threads, size_t count, const Work& work) {
    Pieces<Work> pieces{work, threads, count};
    {
        std::vector<std::jthread> others;
        try {
            for (uint32_t member = 1; member < threads && member < count; ++member)
                others.emplace_back([&pieces, member] { pieces.take(member); });
        } catch (...) {  // no more threads to be had: those that there are do it
        }
        pieces.take(0);
    }
    pieces.end();
}

}  // namespace foresay
