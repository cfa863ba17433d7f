#include "threads.hpp"

#include <dlfcn.h>

#include <system_error>

namespace foresay {
namespace {

using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);  // how code that GCC compiled starts a team
std::atomic<Parallel> parallel = nullptr;

/// What the members of an OpenMP team are given. The thread sanitizer cannot look into libgomp: what orders its members' work is
/// said here in C++'s own words.
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

void pause() noexcept {
#ifdef __aarch64__
    asm volatile("isb");  // a few dozen cycles; yield would take none
#elif defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/// Threads of our own, where there is no team. They look for work for a while after each piece, then sleep. A caller never
/// waits for a thread that has not begun: on a busy machine it does the work by itself.
class Pool {
public:
    /// Never destroyed: its threads may still look into it when the process ends.
    static Pool& get() {
        static Pool* const pool = new Pool;
        return *pool;
    }

    void run(uint32_t threads, void (*work)(void*), void* data) noexcept {
        const std::unique_lock alone(busy_, std::try_to_lock);
        if (!alone.owns_lock()) return work(data);  // they work for another caller
        grow(threads - 1);
        work_ = work, data_ = data, most_ = threads - 1;
        gate_.store((gate_.load(std::memory_order_relaxed) >> 32 << 32) + kRound + kOpen);
        if (asleep_.load() > 0) gate_.notify_all();
        work(data);
        gate_.fetch_and(~kOpen, std::memory_order_acq_rel);
        while (gate_.load(std::memory_order_acquire) & kInside) pause();
    }

    /// Wakes the threads that sleep: a new number, which they look at before they wait again.
    void wake(uint32_t threads) noexcept {
        const std::unique_lock alone(busy_, std::try_to_lock);
        if (!alone.owns_lock()) return;
        grow(threads - 1);
        gate_.fetch_add(kRound);
        if (asleep_.load() > 0) gate_.notify_all();
    }

private:
    // Of gate_: how many threads are inside, whether more may enter, and the number of the piece of work.
    static constexpr uint64_t kInside = 0xffff, kOpen = 1 << 16, kRound = uint64_t{1} << 32;
    static constexpr uint32_t kLooks = 4000;  // some 100 microseconds

    void grow(uint32_t wanted) noexcept {
        try {
            for (; count_ < wanted; ++count_) std::thread([this] { serve(); }).detach();
        } catch (const std::system_error&) {  // no more threads to be had: those that there are do it
        }
    }

    void serve() noexcept {
        for (uint64_t seen = 0;;) {
            uint64_t now = gate_.load(std::memory_order_acquire);
            for (uint32_t look = 0; !is_new(now, seen) && look < kLooks; ++look) pause(), now = gate_.load(std::memory_order_acquire);
            if (!is_new(now, seen)) {
                asleep_.fetch_add(1);
                now = gate_.load();
                if (!is_new(now, seen)) gate_.wait(now);
                asleep_.fetch_sub(1);
            } else if ((now & kInside) >= most_.load(std::memory_order_relaxed)) {
                seen = now >> 32;
            } else if (gate_.compare_exchange_weak(now, now + 1, std::memory_order_acq_rel)) {
                seen = now >> 32;
                work_.load(std::memory_order_relaxed)(data_.load(std::memory_order_relaxed));
                gate_.fetch_sub(1, std::memory_order_release);
            }
        }
    }
    static bool is_new(uint64_t gate, uint64_t seen) noexcept { return (gate & kOpen) && gate >> 32 != seen; }

    std::mutex busy_;
    uint32_t count_ = 0;
    std::atomic<uint64_t> gate_ = 0;
    std::atomic<uint32_t> asleep_ = 0, most_ = 0;
    std::atomic<void (*)(void*)> work_ = nullptr;
    std::atomic<void*> data_ = nullptr;
};

/// The team's function, or null. Looks again now and then until there is one: torch may be imported later.
Parallel found_parallel() noexcept {
    constexpr uint32_t kEvery = 256;  // calls: to look takes a microsecond
    static std::atomic<uint32_t> calls = 0;
    if (const Parallel known = parallel.load(std::memory_order_relaxed)) return known;
    if (calls.fetch_add(1, std::memory_order_relaxed) % kEvery != 0) return nullptr;
    const auto found = reinterpret_cast<Parallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
    if (found) parallel.store(found, std::memory_order_relaxed);
    return found;
}

}  // namespace

void on_team(uint32_t threads, void (*work)(void*), void* data) noexcept {
    if (threads <= 1) return work(data);
    if (const Parallel start = found_parallel()) {
        Given given{work, data};
        given.begun.store(true, std::memory_order_release);
        start(Given::run, &given, threads, 0);
        (void)given.ended.load(std::memory_order_acquire);
        return;
    }
    Pool::get().run(threads, work, data);
}

void on_pool(uint32_t threads, void (*work)(void*), void* data) noexcept {
    if (threads <= 1) return work(data);
    Pool::get().run(threads, work, data);
}

void wake_pool(uint32_t threads) noexcept {
    if (threads > 1) Pool::get().wake(threads);
}

}  // namespace foresay
