// Storage that grows without ever moving an element.
//
// Doubling one big array makes a single append cost milliseconds at a million tokens. A Arena adds a new chunk instead,
// twice as long as the one before, and an index finds its chunk with one count-leading-zeros.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "prefetch.hpp"
#include "slab.hpp"

namespace foresay {

template <class T>
class Arena {
    static constexpr unsigned kFirstBits = 6;  // the first chunk holds 64 elements

public:
    Arena() = default;
    Arena(Arena&& other) noexcept
        : size_(std::exchange(other.size_, 0)), capacity_(std::exchange(other.capacity_, 0)),
          chunk_count_(std::exchange(other.chunk_count_, 0)), chunks_(std::exchange(other.chunks_, {})) {}
    Arena& operator=(Arena&& other) noexcept {
        std::swap(size_, other.size_);
        std::swap(capacity_, other.capacity_);
        std::swap(chunk_count_, other.chunk_count_);
        std::swap(chunks_, other.chunks_);
        return *this;
    }
    ~Arena() {
        for (unsigned chunk = 0; chunk < chunk_count_; ++chunk) slab::release(chunks_[chunk], sizeof(T) << (kFirstBits + chunk));
    }

    T& operator[](uint32_t index) noexcept { return *address(index); }
    const T& operator[](uint32_t index) const noexcept { return *address(index); }

    /// Appends `count` elements with indeterminate values and returns the index of the first.
    uint32_t append(uint32_t count = 1) {
        const uint32_t first = size_;
        const uint32_t end = first + count;
        while (end > capacity_) {
            const unsigned bits = kFirstBits + chunk_count_;
            chunks_[chunk_count_] = static_cast<T*>(slab::allocate(sizeof(T) << bits));
            ++chunk_count_;
            capacity_ += uint32_t{1} << bits;
        }
        size_ = end;
        return first;
    }

    uint32_t size() const noexcept { return size_; }
    /// Bytes of memory in use, reserved but unwritten parts included where they are resident.
    size_t bytes() const noexcept {
        if (chunk_count_ == 0) return 0;
        const size_t last = size_t{1} << (kFirstBits + chunk_count_ - 1), before = capacity_ - last;
        return before * sizeof(T) + slab::resident(last * sizeof(T), (size_ - before) * sizeof(T));
    }
    void prefetch(uint32_t index) const noexcept { foresay::prefetch(address(index)); }

private:
    T* address(uint32_t index) const noexcept {
        const uint32_t shifted = index + (uint32_t{1} << kFirstBits);
        const unsigned bits = 31u - static_cast<unsigned>(std::countl_zero(shifted));
        return &chunks_[bits - kFirstBits][shifted ^ (uint32_t{1} << bits)];
    }

    static_assert(std::is_trivially_copyable_v<T>);

    uint32_t size_ = 0;
    uint32_t capacity_ = 0;
    unsigned chunk_count_ = 0;
    std::array<T*, 32 - kFirstBits> chunks_{};  // behind the numbers, so that the first ones are on the same cache line
};

}  // namespace foresay
