// What the bindings share: arrays and states that come from Python, and arrays that go there.
//
// A parameter of these types is converted without a word in the binding:
//   std::span<const Number>    an array of that type, of one dimension and contiguous, which is copied: once the GIL is released,
//                              other threads may write into it. None, where it is allowed, is a span without memory.
//   Matrix<Number>             the same of two dimensions, not copied: the caller keeps other threads from it.
//   std::span<State* const>    a list of states, which are kept alive whatever happens to the list meanwhile.
//   const Kernels&             the name of a level of processors.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "cpu/levels.hpp"
#include "drafts.hpp"
#include "errors.hpp"
#include "matrix.hpp"

namespace foresay {

namespace nb = nanobind;

/// Without the GIL while the core works.
using Released = nb::call_guard<nb::gil_scoped_release>;
template <class Work>
auto released(Work&& work) {
    const nb::gil_scoped_release unlocked;
    return work();
}

template <class T>
using Array = nb::ndarray<nb::numpy, T, nb::ndim<1>>;
using Tokens = std::span<const int32_t>;
/// An array inside of a list, a tuple or what may be None.
template <class T>
using Given = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
std::vector<T> copy(const Given<T>& values) { return {values.data(), values.data() + values.size()}; }

/// A numpy array that owns the values; of one dimension, or of the given shape.
template <class T, class... Size>
auto own(std::vector<T>&& values, Size... shape) {
    auto* kept = new std::vector<T>(std::move(values));
    nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    if constexpr (sizeof...(shape) == 0) return Array<T>(kept->data(), {kept->size()}, owner);
    else return nb::ndarray<nb::numpy, T, nb::ndim<sizeof...(shape)>>(kept->data(), {static_cast<size_t>(shape)...}, owner);
}
template <class... T>
std::tuple<Array<T>...> owned(std::vector<T>&&... values) { return {own(std::move(values))...}; }

void bind_budget(nb::module_& m);
void bind_drafter(nb::module_& m);
void bind_recycle(nb::module_& m);
void bind_sampling(nb::module_& m);
void bind_attention(nb::module_& m);
void bind_linear(nb::module_& m);
void bind_decoder(nb::module_& m);
void bind_paged(nb::module_& m);

}  // namespace foresay

namespace nanobind::detail {

template <class T>
    requires std::is_arithmetic_v<T>
struct type_caster<std::span<const T>> {
    using Source = ndarray<const T, ndim<1>, c_contig, device::cpu>;
    NB_TYPE_CASTER(std::span<const T>, make_caster<Source>::Name)

    bool from_python(handle source, uint32_t flags, cleanup_list* cleanup) {
        if (source.is_none()) return flags & cast_flags::accepts_none;
        make_caster<Source> array;
        if (!array.from_python(source, flags & ~uint32_t{cast_flags::convert}, cleanup)) return false;
        copy_.reserve(1);  // an empty array is not None
        copy_.assign(array.value.data(), array.value.data() + array.value.size());
        value = {copy_.data(), copy_.size()};
        return true;
    }

private:
    std::vector<T> copy_;
};

template <class T>
struct type_caster<foresay::Matrix<T>> {
    using Source = ndarray<T, ndim<2>, c_contig, device::cpu>;
    NB_TYPE_CASTER(foresay::Matrix<T>, make_caster<Source>::Name)

    bool from_python(handle source, uint32_t flags, cleanup_list* cleanup) noexcept {
        if (source.is_none()) return flags & cast_flags::accepts_none;
        if (!array_.from_python(source, flags & ~uint32_t{cast_flags::convert}, cleanup)) return false;
        value = {array_.value.data(), array_.value.shape(0), array_.value.shape(1)};
        return true;
    }

private:
    make_caster<Source> array_;
};

template <class State>
struct type_caster<std::span<State* const>> {
    using States = std::span<State* const>;
    using Source = typed<list, State>;
    NB_TYPE_CASTER(States, make_caster<Source>::Name)

    bool from_python(handle source, uint32_t, cleanup_list*) {
        if (!PyList_Check(source.ptr())) return false;
        held_ = steal<nanobind::tuple>(PyList_AsTuple(source.ptr()));
        states_.reserve(held_.size());
        for (const handle state : held_) {
            if (!state.type().is(type<State>()) || !inst_ready(state))
                throw foresay::StateError("state ", states_.size(), " is no state; expected one that begin() returned");
            states_.push_back(inst_ptr<State>(state));
        }
        value = states_;
        return true;
    }

private:
    nanobind::tuple held_;
    std::vector<State*> states_;
};

template <>
struct type_caster<foresay::Kernels> {
    static constexpr auto Name = make_caster<std::string>::Name;
    template <typename>
    using Cast = const foresay::Kernels&;

    bool from_python(handle source, uint32_t flags, cleanup_list* cleanup) {
        make_caster<std::string> name;
        if (!name.from_python(source, flags, cleanup)) return false;
        value_ = &foresay::level_of(name.value);
        return true;
    }
    template <typename>
    bool can_cast() const noexcept { return true; }
    explicit operator const foresay::Kernels&() const noexcept { return *value_; }

private:
    const foresay::Kernels* value_ = nullptr;
};

/// A result whose members become a tuple of arrays.
template <class Result, auto... members>
struct arrays_caster {
    template <class T>
    static T vector_of(T Result::*);
    static constexpr auto Name =
        const_name("tuple[") + concat(make_caster<foresay::Array<typename decltype(vector_of(members))::value_type>>::Name...) + const_name("]");
    static handle from_cpp(Result&& result, rv_policy, cleanup_list* cleanup) {
        auto arrays = foresay::owned(std::move(result.*members)...);
        return make_caster<decltype(arrays)>::from_cpp(std::move(arrays), rv_policy::automatic, cleanup);
    }
};

/// (tokens, parents, offsets, scores)
template <>
struct type_caster<foresay::DraftTrees> : arrays_caster<foresay::DraftTrees, &foresay::DraftTrees::tokens, &foresay::DraftTrees::parents,
                                                        &foresay::DraftTrees::offsets, &foresay::DraftTrees::scores> {};

}  // namespace nanobind::detail
