// Linear layers with weights in blocks, and whole decoders made of them, for Python. Rows and results are too large to copy:
// they are read and written while the GIL is released, so the caller keeps other threads from them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bind/bind.hpp"
#include "cpu/block_file.hpp"
#include "cpu/decoder.hpp"
#include "errors.hpp"

using namespace nanobind::literals;

namespace foresay {
namespace {

using Floats = Given<float>;
using Rows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Results = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <class T>
std::span<const T> span_of(const std::optional<Given<T>>& given) {
    if (!given) return {};
    return {given->data(), given->size()};
}

std::string shape_of(size_t rows, size_t width) { return "[" + std::to_string(rows) + ", " + std::to_string(width) + "]"; }

template <class Array>
void check_shape(const char* name, const Array& array, size_t rows, size_t width) {
    if (array.shape(0) != rows || array.shape(1) != width)
        throw InputError(std::string(name) + " has the shape " + shape_of(array.shape(0), array.shape(1)) + "; expected " + shape_of(rows, width));
}

void bind_block_linear(nb::module_& m) {
    nb::class_<BlockLinear>(m, "BlockLinear", "x @ weight.T + bias with weights as GGUF stores them; see csrc/cpu/block_linear.hpp. Threads may share it.")
        .def("__init__", [](BlockLinear* self, const std::string& format, const Given<uint8_t>& weight, size_t outs, size_t ins,
                            const std::optional<Tokens>& order, const std::optional<Floats>& bias, const std::string& level) {
            const Kernels& kernels = level_of(level);
            const blocks::Format found = format_of(format);
            const nb::gil_scoped_release released;
            new (self) BlockLinear(found, {weight.data(), weight.size()}, outs, ins, span_of(order), span_of(bias), kernels);
        }, "format"_a, "weight"_a.noconvert(), "outs"_a, "ins"_a, "order"_a.none() = nb::none(), "bias"_a.none() = nb::none(), "level"_a = "",
           "weight: the bytes of `outs` rows of `ins` numbers; output i is row order[i]. Copies all.")
        .def_prop_ro("in_features", &BlockLinear::ins)
        .def_prop_ro("out_features", &BlockLinear::outs)
        .def_prop_ro("format", [](const BlockLinear& self) { return blocks::facts_of(self.format()).name; })
        .def_prop_ro("bytes", &BlockLinear::bytes)
        .def_prop_ro("stored_bytes", &BlockLinear::stored_bytes)
        .def("row", [](const BlockLinear& self, size_t out) {
            if (out >= self.outs()) throw InputError("row " + std::to_string(out) + " is not there; expected 0 to " + std::to_string(self.outs() - 1));
            std::vector<float> numbers(self.ins());
            self.row(out, numbers.data());
            return own(std::move(numbers));
        }, "out"_a, "The weights of one output as floats.")
        .def("multiply", [](const BlockLinear& self, const Rows& x, const Results& out, uint32_t threads) {
            check_shape("x", x, x.shape(0), self.ins()), check_shape("out", out, x.shape(0), self.outs());
            const float *const from = x.data(), *const end = from + x.size();
            if (out.data() < end && from < out.data() + out.size()) throw InputError("out overlaps x; expected memory of its own");
            const nb::gil_scoped_release released;
            const BlockProduct product{self, out.data()};
            multiply({&product, 1}, from, x.shape(0), threads);
        }, "x"_a.noconvert(), "out"_a.noconvert(), "threads"_a = 1, "x [rows, ins] into out [rows, outs], float32 and contiguous.");
}

/// Name, format, where it begins in the file, outputs, inputs, order, bias.
using Stored = std::tuple<std::string, std::string, uint64_t, size_t, size_t, std::optional<Tokens>, std::optional<Floats>>;

void bind_file(nb::module_& m) {
    m.def("read_linears", [](const std::string& file, const std::vector<Stored>& given, uint32_t threads, const std::string& level) {
        const Kernels& kernels = level_of(level);
        std::vector<StoredLinear> stored;
        for (const auto& [name, format, start, outs, ins, order, bias] : given)
            stored.push_back({name, format_of(format), start, outs, ins, order ? copy(*order) : std::vector<int32_t>{}, bias ? copy(*bias) : std::vector<float>{}});
        const nb::gil_scoped_release released;
        return read_linears(file, stored, threads, kernels);
    }, "file"_a, "linears"_a, "threads"_a = 1, "level"_a = "",
       "A BlockLinear of each (name, format, start, outs, ins, order, bias): as BlockLinear, with the weights that begin at byte `start` of the file.");
}

using Shared = Decoder::Weights;
using Weight = std::optional<Floats>;

Decoder::Norm norm_of(const Weight& given) {
    if (!given) return {};
    return copy(*given);
}

blocks::Activation activation_of(const std::string& name) {
    if (name == "silu") return blocks::Activation::silu;
    if (name == "gelu") return blocks::Activation::gelu;
    throw InputError("the activation is \"" + name + "\"; expected \"silu\" or \"gelu\"");
}

void bind_layer(nb::module_& m) {
    nb::class_<Decoder::Layer>(m, "BlockLayer", "The parts of one layer of a Decoder. Norms are their weights, or None.")
        .def("__init__", [](Decoder::Layer* self, Shared query, Shared key, Shared value, Shared out, Shared gate, Shared up, Shared down, const Floats& attention,
                            const Floats& mlp, const Weight& queries, const Weight& keys, const Weight& after_attention, const Weight& after_mlp, uint32_t window,
                            uint32_t rope) {
            new (self) Decoder::Layer{std::move(query), std::move(key), std::move(value), std::move(out), std::move(gate), std::move(up), std::move(down),
                                      copy(attention), copy(mlp), norm_of(queries), norm_of(keys), norm_of(after_attention), norm_of(after_mlp), window, rope};
        }, "query"_a, "key"_a, "value"_a, "out"_a, "gate"_a, "up"_a, "down"_a, "attention_norm"_a, "mlp_norm"_a, "query_norm"_a.none() = nb::none(),
           "key_norm"_a.none() = nb::none(), "after_attention_norm"_a.none() = nb::none(), "after_mlp_norm"_a.none() = nb::none(), "window"_a = 0, "rope"_a = 0);
}

void bind_whole(nb::module_& m) {
    nb::class_<Decoder>(m, "Decoder", "A whole decoder in one call; see csrc/cpu/decoder.hpp. Threads may share it.")
        .def("__init__", [](Decoder* self, Shared embedding, const std::vector<Decoder::Layer>& layers, const Floats& norm, std::optional<Shared> head, size_t head_dim,
                            float eps, float scaling, const std::vector<std::vector<float>>& frequencies, const std::string& activation, float embedding_scale,
                            float rope_scale, float score_cap, float logit_cap) {
            new (self) Decoder(std::move(embedding), layers, copy(norm), head ? *head : nullptr,
                               {head_dim, eps, scaling, activation_of(activation), embedding_scale, rope_scale, score_cap, logit_cap, frequencies});
        }, "embedding"_a, "layers"_a, "norm"_a, "head"_a.none(), "head_dim"_a, "eps"_a, "scaling"_a, "frequencies"_a, "activation"_a = "silu",
           "embedding_scale"_a = 1.0f, "rope_scale"_a = 1.0f, "score_cap"_a = 0.0f, "logit_cap"_a = 0.0f, "Shares the linear layers, copies the norms.")
        .def_prop_ro("width", &Decoder::width)
        .def_prop_ro("vocabulary", &Decoder::vocabulary)
        .def_prop_ro("bytes", &Decoder::bytes)
        .def_prop_ro("shapes", [](const Decoder& self) {
            std::vector<std::tuple<uint32_t, uint32_t, uint32_t>> found;
            for (const KvLayer& layer : self.shapes()) found.emplace_back(layer.heads, layer.key_dim, layer.value_dim);
            return found;
        })
        .def("forward", [](const Decoder& self, AttentionStep& step, const Tokens& tokens, const Given<int64_t>& needed, const Results& logits,
                           const std::optional<Results>& hidden, uint32_t threads) {
            check_shape("logits", logits, needed.size(), self.vocabulary());
            if (hidden) check_shape("hidden", *hidden, needed.size(), self.width());
            const std::vector<int32_t> ids = copy(tokens);
            const std::vector<int64_t> rows = copy(needed);
            float* const states = hidden ? hidden->data() : nullptr;
            const nb::gil_scoped_release released;
            self.forward(step, ids, rows, logits.data(), states, threads);
        }, "step"_a, "tokens"_a, "needed"_a, "logits"_a.noconvert(), "hidden"_a.noconvert().none() = nb::none(), "threads"_a = 1,
           "The step's tokens; writes the logits [needed, vocabulary] and last hidden states [needed, width] of the rows `needed`.");
}

}  // namespace

void bind_decoder(nb::module_& m) {
    bind_block_linear(m);
    bind_file(m);
    bind_layer(m);
    bind_whole(m);
}

}  // namespace foresay
