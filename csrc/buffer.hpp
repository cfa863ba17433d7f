// A plain array that is overwritten again and again: grows, never shrinks, and leaves new values indeterminate.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace foresay {

template <class T>
class Buffer {
    static_assert(std::is_trivially_copyable_v<T>);

public:
    Buffer() = default;
    Buffer(Buffer&&) noexcept = default;
    Buffer& operator=(Buffer&&) noexcept = default;

    T& operator[](uint32_t index) noexcept { return values_[index]; }
    const T& operator[](uint32_t index) const noexcept { return values_[index]; }
    uint32_t size() const noexcept { return size_; }
    void resize(uint32_t size) {
        reserve(size);
        size_ = size;
    }
    void push_back(const T& value) {
        const T copy = value;  // which may stand in this buffer
        resize(size_ + 1);
        values_[size_ - 1] = copy;
    }
    T* begin() noexcept { return values_.get(); }
    const T* begin() const noexcept { return values_.get(); }

private:
    void reserve(uint32_t size) {
        if (size <= capacity_) [[likely]] return;
        const uint32_t capacity = std::max(size, 2 * capacity_);
        auto values = std::make_unique_for_overwrite<T[]>(capacity);
        std::copy_n(values_.get(), size_, values.get());
        values_ = std::move(values);
        capacity_ = capacity;
    }

    std::unique_ptr<T[]> values_;
    uint32_t size_ = 0, capacity_ = 0;
};

}  // namespace foresay
