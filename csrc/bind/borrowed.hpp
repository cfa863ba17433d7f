// Arrays of numpy or torch that a call reads or writes where they are.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "bind/bind.hpp"

namespace foresay {

/// The functions that a type of tensors may offer (DLPack 1.3), up to the one that is used here.
struct Exchange {
    uint32_t major, minor;
    void *older, *allocate, *from_object, *to_object;
    int (*borrow)(void* object, nb::dlpack::dltensor* out);  // -1: a Python error is set
};

/// What is known of a type. Never changed and never freed, so that any thread may read it; the type is held, so that no other
/// can have its address.
struct KnownType {
    PyObject* type;
    const Exchange* exchange;
    const KnownType* next;
};

/// Those of a type, or null. torch offers them; asking a tensor for a capsule instead takes 3 microseconds.
inline const Exchange* exchange_of(nb::handle type) {
    // The GIL orders the calls, but asking a type for an attribute may hand it to another thread: entries come whole.
    static std::atomic<const KnownType*> known = nullptr;
    constexpr size_t kMost = 8;  // there are two: torch's tensors and parameters
    size_t count = 0;
    for (const KnownType* one = known.load(std::memory_order_acquire); one; one = one->next, ++count)
        if (one->type == type.ptr()) return one->exchange;
    constexpr const char* kName = "dlpack_exchange_api";
    const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
    if (!PyCapsule_IsValid(capsule.ptr(), kName)) return nullptr;
    const auto* table = static_cast<const Exchange*>(PyCapsule_GetPointer(capsule.ptr(), kName));
    if (table->major != 1 || !table->borrow) return nullptr;
    if (count >= kMost) return table;
    auto* const entry = new KnownType{type.inc_ref().ptr(), table, known.load(std::memory_order_relaxed)};
    while (!known.compare_exchange_weak(entry->next, entry, std::memory_order_release, std::memory_order_relaxed)) {
    }
    return table;
}

inline bool is_float32(const nb::dlpack::dtype& found) {
    return found.lanes == 1 && found.bits == 32 && found.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Float);
}
/// numpy has no bfloat16: its bits come as uint16.
inline bool is_bfloat16(const nb::dlpack::dtype& found) {
    return found.lanes == 1 && found.bits == 16 && (found.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Bfloat) ||
                                                    found.code == static_cast<uint8_t>(nb::dlpack::dtype_code::UInt));
}

/// An array that the caller owns, for as long as a call lasts; shape and strides are to be read before the GIL is
/// released. Strides count numbers.
struct Borrowed {
    Borrowed(const char* name, nb::handle object, bool written) {
        if (const Exchange* exchange = exchange_of(object.type())) {
            nb::dlpack::dltensor tensor;
            const bool there = exchange->borrow(object.ptr(), &tensor) == 0;
            if (!there) PyErr_Clear();  // a tensor without memory
            if (!there || tensor.device.device_type != nb::device::cpu::value)
                throw nb::type_error((std::string(name) + " is not on the CPU").c_str());
            data = static_cast<char*>(tensor.data) + tensor.byte_offset, dtype = tensor.dtype;
            dimensions = static_cast<size_t>(tensor.ndim), shape = tensor.shape, strides = tensor.strides;
            return;
        }
        if (!(written ? nb::try_cast(object, written_, false) : nb::try_cast(object, read_, false)))
            throw nb::type_error((std::string(name) + " is not an array on the CPU" + (written ? " that can be written to" : "")).c_str());
        if (written) take(written_.data(), written_);
        else take(const_cast<void*>(read_.data()), read_);
    }

    void* data;
    nb::dlpack::dtype dtype;
    size_t dimensions;
    const int64_t *shape, *strides;

private:
    template <class Held>
    void take(void* numbers, const Held& held) {
        data = numbers, dtype = held.dtype(), dimensions = held.ndim(), shape = held.shape_ptr(), strides = held.stride_ptr();
    }
    nb::ndarray<nb::device::cpu> written_;
    nb::ndarray<nb::ro, nb::device::cpu> read_;
};

}  // namespace foresay
