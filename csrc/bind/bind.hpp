// What the bindings share: arrays that come from Python, and arrays that go there.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace foresay {

namespace nb = nanobind;

template <class T>
using Given = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Tokens = Given<int32_t>;
template <class T>
using Array = nb::ndarray<nb::numpy, T, nb::ndim<1>>;
template <class T>
using Table = nb::ndarray<nb::numpy, T, nb::ndim<2>>;

template <class T>
std::span<const T> view(const Given<T>& values) { return {values.data(), values.size()}; }

/// The values as they are now: once the GIL is released, other threads may write into the array.
template <class T>
std::vector<T> copy(const Given<T>& values) { return {values.data(), values.data() + values.size()}; }

/// A numpy array that owns the values.
template <class T>
Array<T> own(std::vector<T>&& values) {
    auto* kept = new std::vector<T>(std::move(values));
    nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    return Array<T>(kept->data(), {kept->size()}, owner);
}

/// The same in rows of `columns`.
template <class T>
Table<T> own(std::vector<T>&& values, size_t rows, size_t columns) {
    auto* kept = new std::vector<T>(std::move(values));
    nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    return Table<T>(kept->data(), {rows, columns}, owner);
}

void bind_budget(nb::module_& m);
void bind_drafter(nb::module_& m);
void bind_recycle(nb::module_& m);
void bind_sampling(nb::module_& m);
void bind_attention(nb::module_& m);
void bind_linear(nb::module_& m);
void bind_decoder(nb::module_& m);

}  // namespace foresay
