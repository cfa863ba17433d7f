// Linear layers, norms and whole decoder layers for Python. Rows and results are too large to copy: they are read and
// written while the GIL is released, so the caller keeps other threads from them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>

#include "bind/bind.hpp"
#include "cpu/decoder_layer.hpp"
#include "bind/borrowed.hpp"
#include "checks.hpp"
#include "cpu/linear.hpp"

using namespace nanobind::literals;

namespace foresay {
namespace {

std::string shape_of(const Borrowed& array) { return foresay::shape_of(array.shape, array.dimensions); }

void check_dtype(const char* name, const Borrowed& array) {
    if (!is_bfloat16(array.dtype)) throw InputError(name, " is of another dtype; expected bfloat16 (or its bits as uint16)");
}

/// Rows of `width` numbers, one behind the other at equal distances.
struct Rows {
    Rows(const char* name, const Borrowed& array, size_t width) {
        check_dtype(name, array);
        const size_t last = array.dimensions - 1;
        if (array.dimensions == 0 || static_cast<size_t>(array.shape[last]) != width)
            throw InputError(name, " has the shape ", shape_of(array), "; expected ", width, " as its last number");
        data = static_cast<uint16_t*>(array.data), step = static_cast<int64_t>(width);
        bool even = width == 1 || array.strides[last] == 1, known = false;
        for (size_t i = last; i-- > 0;) {
            if (array.shape[i] == 1) continue;
            if (!known) step = array.strides[i], known = true;
            else even &= array.strides[i] == step * static_cast<int64_t>(count);
            count *= static_cast<size_t>(array.shape[i]);
        }
        if (count && !even) throw InputError(name, " has rows at unequal distances, or with gaps; give a contiguous copy");
        first = end = reinterpret_cast<uintptr_t>(data);
        if (count) end += static_cast<uintptr_t>(step * static_cast<int64_t>(count - 1)) * sizeof(uint16_t);
        if (step < 0) std::swap(first, end);
        end += width * sizeof(uint16_t);
    }
    uint16_t* data;
    int64_t step;
    size_t count = 1;
    uintptr_t first, end;  // where the numbers begin and end

    void check_contiguous(const char* name, size_t width) const {
        if (count > 1 && step != static_cast<int64_t>(width)) throw InputError(name, " is not contiguous; expected a contiguous array");
    }
};

/// `out` has a row for each of x, contiguous and elsewhere.
void check_out(const Rows& x, const Rows& out, size_t width) {
    if (out.count != x.count) throw InputError("out has ", out.count, " rows; x has ", x.count);
    out.check_contiguous("out", width);
    if (x.count && x.first < out.end && out.first < x.end) throw InputError("out overlaps x; expected memory of its own");
}

void bind_class(nb::module_& m) {
    nb::class_<Linear>(m, "Linear", "x @ weight.T + bias of bfloat16; see csrc/cpu/linear.hpp. Threads may share it.")
        .def("__init__", [](Linear* self, nb::handle weight, nb::handle bias, const Kernels& level) {
            const Borrowed weights("weight", weight, false);
            check_dtype("weight", weights);
            if (weights.dimensions != 2) throw InputError("weight has the shape ", shape_of(weights), "; expected 2 dimensions");
            const auto outs = static_cast<size_t>(weights.shape[0]), ins = static_cast<size_t>(weights.shape[1]);
            const int64_t out_stride = weights.strides[0], in_stride = weights.strides[1];
            const auto* const numbers = static_cast<const uint16_t*>(weights.data);
            std::optional<Borrowed> biases;
            if (!bias.is_none()) {
                biases.emplace("bias", bias, false);
                check_dtype("bias", *biases);
                if (biases->dimensions != 1 || static_cast<size_t>(biases->shape[0]) != outs)
                    throw InputError("bias has the shape ", shape_of(*biases), "; expected [", outs, "]");
            }
            const auto* const more = biases ? static_cast<const uint16_t*>(biases->data) : nullptr;
            const int64_t bias_stride = biases ? biases->strides[0] : 0;
            const nb::gil_scoped_release unlocked;
            new (self) Linear(numbers, outs, ins, out_stride, in_stride, more, bias_stride, level);
        }, "weight"_a, "bias"_a.none() = nb::none(), "level"_a = "", "weight [outs, ins] and bias [outs], of torch or numpy (bits as uint16). Copies both.")
        .def_prop_ro("in_features", &Linear::ins)
        .def_prop_ro("out_features", &Linear::outs)
        .def_prop_ro("bytes", &Linear::bytes)
        .def("multiply", [](const Linear& self, nb::handle x, nb::handle out, uint32_t threads) {
            const Borrowed given("x", x, false), written("out", out, true);
            const Rows rows("x", given, self.ins()), results("out", written, self.outs());
            check_out(rows, results, self.outs());
            const Product product{self, results.data};
            released([&] { multiply({&product, 1}, rows.data, rows.step, rows.count, threads); });
        }, "x"_a, "out"_a, "threads"_a = 1, "x [..., rows, ins] into out [..., rows, outs], contiguous; bfloat16 or its bits as uint16.");
}

using Scale = std::pair<nb::object, float>;

/// A copy.
DecoderLayer::Norm norm_of(const char* name, const std::optional<Scale>& given) {
    if (!given) return {};
    const Borrowed weight(name, given->first, false);
    check_dtype(name, weight);
    if (weight.dimensions != 1) throw InputError(name, " has the shape ", shape_of(weight), "; expected 1 dimension");
    DecoderLayer::Norm norm{{}, given->second};
    for (int64_t i = 0; i < weight.shape[0]; ++i) norm.weight.push_back(static_cast<const uint16_t*>(weight.data)[i * weight.strides[0]]);
    return norm;
}

void bind_decoder_layer(nb::module_& m) {
    using Shared = std::shared_ptr<const Linear>;
    nb::class_<DecoderLayer>(m, "DecoderLayer", "A layer of a decoder in one call; see csrc/cpu/decoder_layer.hpp. Threads may share it.")
        .def("__init__", [](DecoderLayer* self, Shared query, Shared key, Shared value, Shared out, Shared gate, Shared up, Shared down, const Scale& attention,
                            const Scale& mlp, size_t head, const std::optional<Scale>& queries, const std::optional<Scale>& keys) {
            new (self) DecoderLayer({std::move(query), std::move(key), std::move(value), std::move(out), std::move(gate), std::move(up), std::move(down),
                              norm_of("attention_norm", attention), norm_of("mlp_norm", mlp), norm_of("query_norm", queries), norm_of("key_norm", keys)}, head);
        }, "query"_a, "key"_a, "value"_a, "out"_a, "gate"_a, "up"_a, "down"_a, "attention_norm"_a, "mlp_norm"_a, "head"_a,
           "query_norm"_a.none() = nb::none(), "key_norm"_a.none() = nb::none(), "A norm is its weight and eps. Shares the layers, copies the norms.")
        .def("forward", [](const DecoderLayer& self, AttentionStep& step, uint32_t layer, nb::handle x, nb::handle cos, nb::handle sin, float scaling,
                           uint32_t window, uint32_t chunk, uint32_t threads) {
            if (step.dtype() != Dtype::bfloat16) throw InputError("the step is of float32; expected bfloat16");
            const Borrowed given("x", x, true), cosines("cos", cos, false), sines("sin", sin, false);
            const Rows rows("x", given, self.width()), low("cos", cosines, self.head()), high("sin", sines, self.head());
            rows.check_contiguous("x", self.width()), low.check_contiguous("cos", self.head()), high.check_contiguous("sin", self.head());
            if (low.count != rows.count || high.count != rows.count)
                throw InputError("cos has ", low.count, " rows and sin ", high.count, "; x has ", rows.count);
            released([&] { self.forward(step, {layer, low.data, high.data, scaling, window, chunk, threads}, rows.data, rows.count); });
        }, "step"_a, "layer"_a, "x"_a, "cos"_a, "sin"_a, "scaling"_a, "window"_a = 0, "chunk"_a = 0, "threads"_a = 1,
           "Changes x [..., rows, width]; cos and sin are [..., rows, head]. All of bfloat16 or its bits as uint16, contiguous.");
}

}  // namespace

void bind_linear(nb::module_& m) {
    bind_class(m);
    bind_decoder_layer(m);
    m.def("rms_norm", [](nb::handle x, nb::handle weight, float eps, nb::handle out, const Kernels& level) {
        const Borrowed given("x", x, false), weights("weight", weight, false), written("out", out, true);
        check_dtype("weight", weights);
        if (weights.dimensions != 1 || weights.shape[0] < 1 || (weights.shape[0] > 1 && weights.strides[0] != 1))
            throw InputError("weight has the shape ", shape_of(weights), "; expected 1 dimension, contiguous");
        const auto width = static_cast<size_t>(weights.shape[0]);
        const Rows rows("x", given, width), results("out", written, width);
        check_out(rows, results, width);
        const auto* const scales = static_cast<const uint16_t*>(weights.data);
        released([&] { rms_norm(level.layer, rows.data, rows.step, rows.count, width, scales, eps, results.data); });
    }, "x"_a, "weight"_a, "eps"_a, "out"_a, "level"_a = "", "x [..., rows, width] into out, contiguous; bfloat16 or its bits as uint16. See csrc/cpu/decoder_layer.hpp.");
}

}  // namespace foresay
