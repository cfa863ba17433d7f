// Attention for Python. Queries, keys, values and outputs are too large to copy: they are read, and outputs written, while
// the GIL is released, so the caller keeps other threads from them.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "cpu/attention.hpp"
#include "bind/bind.hpp"
#include "bind/borrowed.hpp"
#include "errors.hpp"

using namespace nanobind::literals;

namespace foresay {
namespace {

using Layer = std::tuple<uint32_t, uint32_t, uint32_t>;

Dtype dtype_of(const std::string& name) {
    if (name == "float32") return Dtype::float32;
    if (name == "bfloat16") return Dtype::bfloat16;
    throw InputError("dtype is \"", name, "\"; expected \"float32\" or \"bfloat16\"");
}

/// An array of four dimensions and the Kv's dtype.
Numbers numbers_of(const char* name, const Borrowed& array, Dtype dtype) {
    if (!(dtype == Dtype::float32 ? is_float32(array.dtype) : is_bfloat16(array.dtype)))
        throw InputError(name, " is of another dtype; the Kv is of ", dtype == Dtype::float32 ? "float32" : "bfloat16 (or its bits as uint16)");
    if (array.dimensions != 4) throw InputError(name, " has ", array.dimensions, " dimensions; expected 4");
    Numbers numbers{array.data, {}, {}};
    std::copy_n(array.shape, 4, numbers.shape), std::copy_n(array.strides, 4, numbers.strides);
    return numbers;
}

/// [heads, tokens, dim] as it is now.
nb::any plain(const Kv& kv, uint32_t layer, bool values) {
    const size_t tokens = kv.rows(layer);
    const KvLayer& shape = kv.layers()[layer];
    const auto array = [&]<class Number>(std::vector<Number>&& numbers) {
        return nb::borrow<nb::any>(nb::cast(own(std::move(numbers), shape.heads, tokens, values ? shape.value_dim : shape.key_dim)));
    };
    return kv.dtype() == Dtype::float32 ? array(kv.plain<float>(layer, values)) : array(kv.plain<uint16_t>(layer, values));
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
        .def("reserve", &Kv::reserve, "tokens"_a, Released())
        .def("keep", &Kv::keep, "path"_a, "The rows of the last step that become the text's next tokens.")
        .def("cut", &Kv::cut, "length"_a)
        .def("copy_from", &Kv::copy_from, "other"_a, "length"_a, Released())
        .def("keys", [](const Kv& self, uint32_t layer) { return plain(self, layer, false); }, "layer"_a,
             "A copy, [kv_heads, tokens and rows of the last step, key_dim]; bfloat16 as uint16.")
        .def("values", [](const Kv& self, uint32_t layer) { return plain(self, layer, true); }, "layer"_a)
        .def("check_integrity", &Kv::check_integrity, Released());
}

void bind_step(nb::module_& m) {
    nb::class_<AttentionStep>(m, "AttentionStep", "One forward; see csrc/cpu/attention.hpp.")
        .def("__init__", [](AttentionStep* self, std::vector<std::shared_ptr<Kv>> kvs, Tokens offsets, Tokens parents, const Kernels& level,
                            std::vector<uint32_t> kept) {
            new (self) AttentionStep(std::move(kvs), {offsets.begin(), offsets.end()}, parents, level, std::move(kept));
        }, "kvs"_a, "offsets"_a, "parents"_a, "level"_a = "", "kept"_a = std::vector<uint32_t>())
        .def_prop_ro("positions", [](const AttentionStep& self) {
            return own(std::vector<int64_t>(self.positions().begin(), self.positions().end()));
        }, nb::rv_policy::automatic)
        .def("attend", [](AttentionStep& self, uint32_t layer, nb::handle query, nb::handle key, nb::handle value, nb::handle out,
                          float scaling, uint32_t window, uint32_t chunk, float softcap, std::span<const float> sinks,
                          uint32_t threads) {
            const Dtype dtype = self.dtype();
            const Borrowed queries("query", query, false), keys("key", key, false), values("value", value, false), outs("out", out, true);
            const AttentionInput input{layer, numbers_of("query", queries, dtype), numbers_of("key", keys, dtype), numbers_of("value", values, dtype),
                                       numbers_of("out", outs, dtype), scaling, window, chunk, softcap, sinks.data(), sinks.size(), threads};
            released([&] { self.attend(input); });
        }, "layer"_a, "query"_a, "key"_a, "value"_a, "out"_a, "scaling"_a, "window"_a = 0, "chunk"_a = 0, "softcap"_a = 0,
           "sinks"_a.none() = nb::none(), "threads"_a = 1,
           "Stores keys and values, writes into out. Arrays of numpy (bfloat16 as uint16) or torch, of the Kv's dtype.");
}

}  // namespace

void bind_attention(nb::module_& m) {
    bind_kv(m);
    bind_step(m);
}

}  // namespace foresay
