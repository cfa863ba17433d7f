// A few threads of our own that help with work of a fraction of a millisecond.
//
// Starting a thread takes longer than such work, and waking one nearly so. So the helpers are kept, they are called before
// the work is ready, and the caller does not wait for one that did not come: present threads take pieces one by one, and
// the caller takes the rest. Where no processor is free, or after a fork, it is nearly as if there were no
// helpers; only one that loses its processor amid a piece is waited for.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <type_traits>

namespace foresay {

class Crew {
public:
    /// `members` count the caller's thread, which is member 0. Threads are started by the first call().
    explicit Crew(uint32_t members) : members_(members) {}
    ~Crew();
    Crew(const Crew&) = delete;
    Crew& operator=(const Crew&) = delete;

    /// Wakes the helpers for a run() that follows within some tens of microseconds.
    void call() noexcept;

    /// Calls work(piece, member) for each piece below `pieces`, and returns when all are done. The first exception is thrown
    /// again. One thread at a time may call this.
    template <class Work>
    void run(uint32_t pieces, Work&& work) {
        using Plain = std::remove_cvref_t<Work>;
        const Function function = [](const void* data, uint32_t piece, uint32_t member) { (*static_cast<const Plain*>(data))(piece, member); };
        run_pieces(pieces, function, &work);
    }

private:
    using Function = void (*)(const void*, uint32_t, uint32_t);
    struct Shared;

    void run_pieces(uint32_t pieces, Function function, const void* data);
    static void help(const std::shared_ptr<Shared>& shared, uint32_t member) noexcept;

    uint32_t members_;
    std::shared_ptr<Shared> shared_;  // with the helpers, once there are any
};

}  // namespace foresay
