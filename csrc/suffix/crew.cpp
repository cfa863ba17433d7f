#include "suffix/crew.hpp"

#include <chrono>
#include <thread>
#include <utility>

namespace foresay {
namespace {

constexpr uint64_t kRemaining = 0xffffffff;
constexpr auto kPatience = std::chrono::microseconds(200);  // of a helper that was called, until there is work

inline void pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace

struct Crew::Shared {
    std::atomic<uint32_t> bell = 0;    // counts calls
    std::atomic<bool> over = false;
    alignas(64) std::atomic<uint64_t> work = 0;  // the run's number << 32 | pieces that no thread has taken
    alignas(64) std::atomic<uint32_t> left = 0;  // pieces that are not done
    // Of the present run: a thread that has taken a piece may read them, since the run lasts until the piece is done.
    Function function = nullptr;
    const void* data = nullptr;
    std::mutex guard;
    std::exception_ptr failure;

    /// Does a piece, if there is one.
    bool take(uint32_t member) noexcept {
        uint64_t seen = work.load(std::memory_order_acquire);
        do {
            if ((seen & kRemaining) == 0) return false;
        } while (!work.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel, std::memory_order_acquire));
        try {
            function(data, static_cast<uint32_t>(seen & kRemaining) - 1, member);
        } catch (...) {
            const std::lock_guard lock(guard);
            if (!failure) failure = std::current_exception();
        }
        left.fetch_sub(1, std::memory_order_acq_rel);
        return true;
    }
};

Crew::~Crew() {
    if (!shared_) return;
    shared_->over = true;
    ++shared_->bell;
    shared_->bell.notify_all();
}

void Crew::help(const std::shared_ptr<Shared>& shared, uint32_t member) noexcept {
    using Clock = std::chrono::steady_clock;
    for (uint32_t heard = 0; !shared->over; heard = shared->bell.load()) {
        shared->bell.wait(heard);
        const Clock::time_point begun = Clock::now();
        bool worked = false;
        while (!shared->over) {
            if (shared->take(member)) worked = true;
            else if (worked || Clock::now() - begun > kPatience) break;
            else pause();
        }
    }
}

void Crew::call() noexcept {
    if (members_ <= 1) return;
    try {
        if (!shared_) {
            shared_ = std::make_shared<Shared>();
            // They are not joined: after a fork they do not exist. They end by themselves.
            for (uint32_t member = 1; member < members_; ++member)
                std::thread([shared = shared_, member] { help(shared, member); }).detach();
        }
        ++shared_->bell;
        shared_->bell.notify_all();
    } catch (...) {  // no threads or no memory to be had: the caller does it all
    }
}

void Crew::run_pieces(uint32_t pieces, Function function, const void* data) {
    if (!shared_) {
        for (uint32_t piece = 0; piece < pieces; ++piece) function(data, piece, 0);
        return;
    }
    Shared& shared = *shared_;
    shared.function = function;
    shared.data = data;
    shared.left.store(pieces, std::memory_order_relaxed);
    const uint64_t number = (shared.work.load(std::memory_order_relaxed) >> 32) + 1;
    shared.work.store(number << 32 | pieces, std::memory_order_release);
    while (shared.take(0)) {
    }
    while (shared.left.load(std::memory_order_acquire) > 0) pause();
    if (std::exception_ptr failure = std::exchange(shared.failure, nullptr)) std::rethrow_exception(failure);
}

}  // namespace foresay
