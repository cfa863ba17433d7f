// Attention for Python. Queries, keys, values and outputs are too large to copy: they are read, and outputs written, while
// the GIL is released, so the caller keeps other threads from them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <vector>

#include "attention.hpp"
#include "bind.hpp"
#include "errors.hpp"

using namespace nanobind::literals;

namespace foresay {
namespace {

using Layer = std::tuple<uint32_t, uint32_t, uint32_t>;

Dtype dtype_of(const std::string& name) {
    if (name == "float32") return Dtype::float32;
    if (name == "bfloat16") return Dtype::bfloat16;
    throw InputError("dtype is \"" + name + "\"; valid are \"float32\" and \"bfloat16\"");
}

/// numpy has no bfloat16: its bits come as uint16.
bool fits(const nb::dlpack::dtype& found, Dtype wanted) {
    if (found.lanes != 1) return false;
    if (wanted == Dtype::float32) return found.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Float) && found.bits == 32;
    return found.bits == 16 && (found.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Bfloat) ||
                                found.code == static_cast<uint8_t>(nb::dlpack::dtype_code::UInt));
}

/// The functions that a type of tensors may offer (DLPack 1.3), up to the one that is used here.
struct Exchange {
    uint32_t major, minor;
    void *older, *allocate, *from_object, *to_object;
    int (*borrow)(void* object, nb::dlpack::dltensor* out);  // -1: a Python error is set
};

/// Those of a type, or null. torch offers them; asking a tensor for a capsule instead takes 3 microseconds.
const Exchange* exchange_of(nb::handle type) {
    static PyObject* known = nullptr;  // held, so that no other type can have its address
    static const Exchange* found = nullptr;
    if (type.ptr() == known) return found;
    constexpr const char* kName = "dlpack_exchange_api";
    const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
    if (!PyCapsule_IsValid(capsule.ptr(), kName)) return nullptr;
    const auto* table = static_cast<const Exchange*>(PyCapsule_GetPointer(capsule.ptr(), kName));
    if (table->major != 1 || !table->borrow) return nullptr;
    Py_INCREF(type.ptr());
    Py_XDECREF(known);
    known = type.ptr(), found = table;
    return table;
}

/// An array that somebody else owns, for as long as a call lasts.
class Borrowed {
public:
    Borrowed(const char* name, nb::handle object, Dtype dtype, bool written) {
        if (const Exchange* exchange = exchange_of(object.type())) {
            nb::dlpack::dltensor tensor;
            const bool there = exchange->borrow(object.ptr(), &tensor) == 0;
            if (!there) PyErr_Clear();  // a tensor without memory
            if (!there || tensor.device.device_type != nb::device::cpu::value)
                throw nb::type_error((std::string(name) + " is not on the CPU").c_str());
            take(name, dtype, static_cast<char*>(tensor.data) + tensor.byte_offset, tensor.dtype, static_cast<size_t>(tensor.ndim),
                 tensor.shape, tensor.strides);
            return;
        }
        if (!(written ? nb::try_cast(object, written_, false) : nb::try_cast(object, read_, false)))
            throw nb::type_error((std::string(name) + " is not an array on the CPU" + (written ? " that can be written to" : "")).c_str());
        if (written) take(name, dtype, written_.data(), written_.dtype(), written_.ndim(), written_.shape_ptr(), written_.stride_ptr());
        else take(name, dtype, const_cast<void*>(read_.data()), read_.dtype(), read_.ndim(), read_.shape_ptr(), read_.stride_ptr());
    }
    const Numbers& numbers() const { return numbers_; }

private:
    void take(const char* name, Dtype dtype, void* data, nb::dlpack::dtype found, size_t dimensions, const int64_t* shape, const int64_t* strides) {
        if (!fits(found, dtype))
            throw InputError(std::string(name) + " is of another dtype; the Kv is of " +
                             (dtype == Dtype::float32 ? "float32" : "bfloat16 (bits as uint16 are valid too)"));
        if (dimensions != 4) throw InputError(std::string(name) + " has " + std::to_string(dimensions) + " dimensions; valid are 4");
        numbers_.data = data;
        for (size_t i = 0; i < 4; ++i) numbers_.shape[i] = static_cast<size_t>(shape[i]), numbers_.strides[i] = strides[i];
    }
    nb::ndarray<nb::device::cpu> written_;
    nb::ndarray<nb::ro, nb::device::cpu> read_;
    Numbers numbers_;
};

/// [heads, tokens, dim] as it is now.
nb::any plain(const Kv& kv, uint32_t layer, bool values) {
    const size_t tokens = kv.rows(layer);
    const KvLayer& shape = kv.layers()[layer];
    const auto given = [&]<class Number>(std::vector<Number>&& numbers) {
        auto* kept = new std::vector<Number>(std::move(numbers));
        nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<Number>*>(p); });
        return nb::borrow<nb::any>(nb::cast(nb::ndarray<nb::numpy, const Number, nb::ndim<3>>(
            kept->data(), {shape.heads, tokens, values ? shape.value_dim : shape.key_dim}, owner)));
    };
    return kv.dtype() == Dtype::float32 ? given(kv.plain<float>(layer, values)) : given(kv.plain<uint16_t>(layer, values));
}

void bind_kv(nb::module_& m) {
    nb::class_<Kv>(m, "Kv", "The keys and values of one text, of all layers. Not for several threads at a time.")
        .def("__init__", [](Kv* self, const std::vector<Layer>& layers, const std::string& dtype) {
            std::vector<KvLayer> shapes;
            for (const auto& [heads, key_dim, value_dim] : layers) shapes.push_back({heads, key_dim, value_dim});
            new (self) Kv(std::move(shapes), dtype_of(dtype));
        }, "layers"_a, "dtype"_a, "layers: (kv_heads, key_dim, value_dim) of each.")
        .def_prop_ro("length", &Kv::length)
        .def_prop_ro("capacity", &Kv::capacity)
        .def_prop_ro("bytes", &Kv::bytes)
        .def("reserve", &Kv::reserve, "tokens"_a, nb::call_guard<nb::gil_scoped_release>())
        .def("keep", [](Kv& self, const Tokens& path) { self.keep(view(path)); }, "path"_a.noconvert(),
             "The rows of the last step that become the text's next tokens.")
        .def("cut", &Kv::cut, "length"_a)
        .def("copy_from", &Kv::copy_from, "other"_a, "length"_a, nb::call_guard<nb::gil_scoped_release>())
        .def("keys", [](const Kv& self, uint32_t layer) { return plain(self, layer, false); }, "layer"_a,
             "A copy, [kv_heads, tokens and rows of the last step, key_dim]; bfloat16 as uint16.")
        .def("values", [](const Kv& self, uint32_t layer) { return plain(self, layer, true); }, "layer"_a)
        .def("check_integrity", &Kv::check_integrity, nb::call_guard<nb::gil_scoped_release>());
}

void bind_step(nb::module_& m) {
    nb::class_<AttentionStep>(m, "AttentionStep", "One forward; see csrc/attention.hpp.")
        .def("__init__", [](AttentionStep* self, std::vector<std::shared_ptr<Kv>> kvs, const Tokens& offsets, const Tokens& parents,
                            const std::string& level) {
            new (self) AttentionStep(std::move(kvs), copy(offsets), view(parents), level);
        }, "kvs"_a, "offsets"_a.noconvert(), "parents"_a.noconvert(), "level"_a = "")
        .def_prop_ro("positions", [](const AttentionStep& self) {
            return own(std::vector<int64_t>(self.positions().begin(), self.positions().end()));
        }, nb::rv_policy::automatic)
        .def("attend", [](AttentionStep& self, uint32_t layer, nb::handle query, nb::handle key, nb::handle value, nb::handle out,
                          float scaling, uint32_t window, uint32_t chunk, float softcap, const std::optional<Given<float>>& sinks,
                          uint32_t threads) {
            const Dtype dtype = self.dtype();
            const Borrowed queries("query", query, dtype, false), keys("key", key, dtype, false), values("value", value, dtype, false);
            const Borrowed outs("out", out, dtype, true);
            AttentionInput input{layer, queries.numbers(), keys.numbers(), values.numbers(), outs.numbers(), scaling, window, chunk,
                                 softcap, nullptr, 0, threads};
            if (sinks) input.sinks = sinks->data(), input.sink_count = sinks->size();
            const nb::gil_scoped_release released;
            self.attend(input);
        }, "layer"_a, "query"_a, "key"_a, "value"_a, "out"_a, "scaling"_a, "window"_a = 0, "chunk"_a = 0, "softcap"_a = 0,
           "sinks"_a.noconvert().none() = nb::none(), "threads"_a = 1,
           "Stores keys and values, writes into out. Arrays of numpy (bfloat16 as uint16) or torch, of the Kv's dtype.");
}

}  // namespace

void bind_attention(nb::module_& m) {
    bind_kv(m);
    bind_step(m);
    m.def("attention_levels", [] {
        const auto names = attention_levels();
        return std::vector<std::string>(names.begin(), names.end());
    }, "The kernels that this machine can run, the best first.");
}

}  // namespace foresay
