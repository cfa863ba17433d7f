// Linear layers with weights in blocks, and whole decoders made of them, for Python. Rows and results are too large to copy:
// they are read and written while the GIL is released, so the caller keeps other threads from them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include "bind/bind.hpp"
#include "cpu/block_linear.hpp"
#include "cpu/decoder.hpp"
#include "checks.hpp"

using namespace nanobind::literals;

namespace foresay {
namespace {

using Floats = std::span<const float>;

template <class T>
void check_shape(const char* name, const Matrix<T>& array, size_t rows, size_t width) {
    if (array.count != rows || array.width != width)
        throw InputError(name, " has the shape ", shape_of({array.count, array.width}), "; expected ", shape_of({rows, width}));
}

void bind_block_linear(nb::module_& m) {
    nb::class_<BlockLinear>(m, "BlockLinear", "x @ weight.T + bias with weights as GGUF stores them; see csrc/cpu/block_linear.hpp. Threads may share it.")
        .def("__init__", [](BlockLinear* self, const std::string& format, std::span<const uint8_t> weight, size_t outs, size_t ins, Tokens order,
                            Floats bias, const Kernels& level) {
            const blocks::Format found = format_of(format);
            const nb::gil_scoped_release unlocked;
            new (self) BlockLinear(found, weight, outs, ins, order, bias, level);
        }, "format"_a, "weight"_a, "outs"_a, "ins"_a, "order"_a.none() = nb::none(), "bias"_a.none() = nb::none(), "level"_a = "",
           "weight: the bytes of `outs` rows of `ins` numbers; output i is row order[i]. Copies all.")
        .def_prop_ro("in_features", &BlockLinear::ins)
        .def_prop_ro("out_features", &BlockLinear::outs)
        .def_prop_ro("format", [](const BlockLinear& self) { return blocks::facts_of(self.format()).name; })
        .def_prop_ro("bytes", &BlockLinear::bytes)
        .def_prop_ro("stored_bytes", &BlockLinear::stored_bytes)
        .def("row", [](const BlockLinear& self, size_t out) {
            if (out >= self.outs()) throw InputError("row ", out, " is not there; expected 0 to ", self.outs() - 1);
            std::vector<float> numbers(self.ins());
            self.row(out, numbers.data());
            return own(std::move(numbers));
        }, "out"_a, "The weights of one output as floats.")
        .def("multiply", [](const BlockLinear& self, const Matrix<const float>& x, const Matrix<float>& out, uint32_t threads) {
            check_shape("x", x, x.count, self.ins()), check_shape("out", out, x.count, self.outs());
            if (out.values < x.row(x.count) && x.values < out.row(out.count)) throw InputError("out overlaps x; expected memory of its own");
            const BlockProduct product{self, out.values};
            multiply({&product, 1}, x.values, x.count, threads);
        }, "x"_a, "out"_a, "threads"_a = 1, Released(), "x [rows, ins] into out [rows, outs], float32 and contiguous.");
}

/// Name, format, where it begins in the file, outputs, inputs, order, bias.
using Stored = std::tuple<std::string, std::string, uint64_t, size_t, size_t, std::optional<Given<int32_t>>, std::optional<Given<float>>>;

void bind_file(nb::module_& m) {
    m.def("read_linears", [](const std::string& file, const std::vector<Stored>& given, uint32_t threads, const Kernels& level) {
        std::vector<StoredLinear> stored;
        for (const auto& [name, format, start, outs, ins, order, bias] : given)
            stored.push_back({name, format_of(format), start, outs, ins, order ? copy(*order) : std::vector<int32_t>{}, bias ? copy(*bias) : std::vector<float>{}});
        return released([&] { return read_linears(file, stored, threads, level); });
    }, "file"_a, "linears"_a, "threads"_a = 1, "level"_a = "",
       "A BlockLinear of each (name, format, start, outs, ins, order, bias): as BlockLinear, with the weights that begin at byte `start` of the file.");
}

using Shared = Decoder::Weights;

Decoder::Norm norm_of(Floats weight) { return {weight.begin(), weight.end()}; }

blocks::Activation activation_of(const std::string& name) {
    if (name == "silu") return blocks::Activation::silu;
    if (name == "gelu") return blocks::Activation::gelu;
    throw InputError("the activation is \"", name, "\"; expected \"silu\" or \"gelu\"");
}

void bind_layer(nb::module_& m) {
    nb::class_<Decoder::Layer>(m, "BlockLayer", "The parts of one layer of a Decoder. Norms are their weights, or None.")
        .def("__init__", [](Decoder::Layer* self, Shared query, Shared key, Shared value, Shared out, Shared gate, Shared up, Shared down, Floats attention,
                            Floats mlp, Floats queries, Floats keys, Floats after_attention, Floats after_mlp, uint32_t window,
                            uint32_t rope) {
            new (self) Decoder::Layer{std::move(query), std::move(key), std::move(value), std::move(out), std::move(gate), std::move(up), std::move(down),
                                      norm_of(attention), norm_of(mlp), norm_of(queries), norm_of(keys), norm_of(after_attention), norm_of(after_mlp), window, rope};
        }, "query"_a, "key"_a, "value"_a, "out"_a, "gate"_a, "up"_a, "down"_a, "attention_norm"_a, "mlp_norm"_a, "query_norm"_a.none() = nb::none(),
           "key_norm"_a.none() = nb::none(), "after_attention_norm"_a.none() = nb::none(), "after_mlp_norm"_a.none() = nb::none(), "window"_a = 0, "rope"_a = 0);
}

void bind_whole(nb::module_& m) {
    nb::class_<Decoder>(m, "Decoder", "A whole decoder in one call; see csrc/cpu/decoder.hpp. Threads may share it.")
        .def("__init__", [](Decoder* self, Shared embedding, const std::vector<Decoder::Layer>& layers, Floats norm, std::optional<Shared> head, size_t head_dim,
                            float eps, float scaling, const std::vector<std::vector<float>>& frequencies, const std::string& activation, float embedding_scale,
                            float rope_scale, float score_cap, float logit_cap) {
            new (self) Decoder(std::move(embedding), layers, norm_of(norm), head ? *head : nullptr,
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
        .def("forward", [](const Decoder& self, AttentionStep& step, Tokens tokens, std::span<const int64_t> needed, const Matrix<float>& logits,
                           const Matrix<float>& hidden, uint32_t threads) {
            check_shape("logits", logits, needed.size(), self.vocabulary());
            if (hidden.values) check_shape("hidden", hidden, needed.size(), self.width());
            self.forward(step, tokens, needed, logits.values, hidden.values, threads);
        }, "step"_a, "tokens"_a, "needed"_a, "logits"_a, "hidden"_a.none() = nb::none(), "threads"_a = 1, Released(),
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
