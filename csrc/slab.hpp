// Memory for automata, on huge pages.
//
// A step touches a few dozen places in each of hundreds of automata. On 4 KiB pages nearly every touch misses the
// processor's address cache as well, which costs as much as the memory itself. So automata take their memory from 4 MiB
// regions that ask the system for huge pages; a region that is wholly free goes back to the system at once.
#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>

namespace foresay::slab {

/// At least `bytes` bytes, aligned to 64, not zeroed. Throws std::bad_alloc. Any thread may call it.
void* allocate(size_t bytes);
/// Allocates nothing.
void release(void* memory, size_t bytes) noexcept;

/// How much of a piece of `bytes` bytes is resident once its first `written` bytes are: small pieces share huge pages, large
/// ones are mapped by themselves and become resident 2 MiB at a time.
size_t resident(size_t bytes, size_t written) noexcept;

template <class T>
struct Release {
    size_t count = 0;
    void operator()(T* values) const noexcept { release(values, count * sizeof(T)); }
};

/// An array of plain values in slab memory, indeterminate until written.
template <class T>
using Array = std::unique_ptr<T[], Release<T>>;

template <class T>
Array<T> make(size_t count) {
    static_assert(std::is_trivially_copyable_v<T>);
    return Array<T>(static_cast<T*>(allocate(count * sizeof(T))), Release<T>{count});
}

/// At least `count` values that the calling thread's calls of one `Owner` use again and again. Valid until the owner's next
/// call in this thread. Throws std::bad_alloc.
template <class Owner, class T>
T* scratch(size_t count) {
    thread_local Array<T> memory;
    if (memory.get_deleter().count < count) {
        memory = {};  // with its size: if there is no memory now, the next call asks again
        memory = make<T>(count);
    }
    return memory.get();
}

}  // namespace foresay::slab
