// Numbers in rows that somebody else owns.
#pragma once

#include <cstddef>

namespace foresay {

template <class T>
struct Matrix {
    T* values = nullptr;  // [count, width]
    size_t count = 0, width = 0;

    T* row(size_t number) const noexcept { return values + number * width; }
};

}  // namespace foresay
