// Runs one function on several threads, those of the process's OpenMP team if there is one.
//
// The workers of torch's team spin for a while after each piece of work. Threads of our own would have to share the cores
// with them; as members of the same team they do our work instead, and it begins at once. Where torch's team cannot be found,
// the threads are our own.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace foresay {

/// Calls work(data) on up to `threads` threads, the caller's among them, and waits for all. `work` must not throw, and has
/// to be right whatever the number of threads that call it; 1 at least does.
void on_team(uint32_t threads, void (*work)(void*), void* data) noexcept;

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

}  // namespace foresay
