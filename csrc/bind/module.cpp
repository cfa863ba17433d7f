// The core for Python: automata and corpora; the rest is in the other bind_*.cpp. Nothing else in csrc/ knows Python.
//
// Token arrays are int32 and never converted; the GIL is released while the core works; each C++ exception becomes its
// namesake in foresay.errors. The classes here are what src/foresay is built from and what the tests hold against their
// slow twins; they check sizes and ids again, but leave the wording of type errors to the Python side.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <memory>
#include <new>
#include <system_error>

#include "suffix/automaton.hpp"
#include "bind/bind.hpp"
#include "checks.hpp"
#include "corpus/frozen_build.hpp"

using namespace nanobind::literals;

namespace foresay {
namespace {

using Names = nb::typed<nb::dict, nb::str, nb::any>;
using Reporter = nb::typed<nb::callable, void(nb::str, double)>;

void raise_as(const char* name, const std::exception& error) {
    PyErr_SetString(nb::module_::import_("foresay.errors").attr(name).ptr(), error.what());
}

void bind_errors() {
    nb::register_exception_translator([](const std::exception_ptr& failure, void*) {
        try {
            std::rethrow_exception(failure);
        } catch (const StateError& error) {
            raise_as("StateError", error);
        } catch (const UnknownGroup& error) {
            raise_as("UnknownGroup", error);
        } catch (const InputError& error) {
            raise_as("InputError", error);
        } catch (const CapacityError& error) {
            raise_as("InputError", error);
        } catch (const TokenizerMismatch& error) {
            raise_as("TokenizerMismatch", error);
        } catch (const CorpusError& error) {
            raise_as("CorpusError", error);
        } catch (const std::system_error& error) {  // with its number, so that Python picks FileNotFoundError and so on
            const nb::object arguments = nb::make_tuple(error.code().value(), error.what());
            PyErr_SetObject(PyExc_OSError, arguments.ptr());
        }
    });
}

// ---- the online automaton ------------------------------------------------------------------------------------------

using Place = std::pair<uint32_t, uint32_t>;
using Described = std::tuple<uint32_t, uint32_t, int32_t, std::vector<std::pair<int32_t, uint32_t>>>;

/// An automaton together with its sequences, which Python knows by number. Refuses every call once an extend has failed.
class Sequences {
public:
    explicit Sequences(bool occurrences) : automaton_(occurrences ? Counting::occurrences : Counting::novelties) {}
    uint32_t begin() {
        sequences_.emplace_back() = automaton_.begin();
        return static_cast<uint32_t>(sequences_.size() - 1);
    }
    void extend(uint32_t sequence, Tokens tokens) {
        Automaton::Sequence& growing = at(sequence);
        check_tokens(tokens);
        for (const int32_t token : tokens) automaton_.extend(growing, token);
    }
    uint32_t match_length(uint32_t sequence) { return automaton().cursor(at(sequence)).length; }
    Automaton::Cursor cursor_after(std::span<const int32_t> tokens) const {
        Automaton::Cursor cursor;
        for (const int32_t token : tokens) automaton().advance(cursor, token);
        return cursor;
    }
    std::optional<Place> place(uint32_t position) const {
        if (position == Automaton::kNoPosition) return std::nullopt;
        const Automaton::Place place = automaton().place(position);
        return Place(place.sequence, place.offset);
    }
    const Automaton& automaton() const {
        if (automaton_.broken()) throw StateError("this automaton failed before, amid an extend; expected a new automaton");
        return automaton_;
    }

private:
    Automaton::Sequence& at(uint32_t sequence) {
        if (sequence >= sequences_.size())
            throw InputError("sequence ", sequence, " was not begun; ", sequences_.size(), " sequences were, numbered from 0");
        return sequences_[sequence];
    }
    Automaton automaton_;
    std::vector<Automaton::Sequence> sequences_;
};

/// What the automaton knows of the longest suffix of some tokens that occurs in it.
Names found(const Sequences& s, Tokens tokens) {
    const Automaton::Cursor cursor = s.cursor_after(tokens);
    Names out;
    out["length"] = cursor.length;
    if (cursor.length == 0) return out;
    const Automaton::Description state = s.automaton().describe(cursor.state);
    out["longest"] = state.length;
    out["shortest"] = state.shortest;
    out["total"] = state.total;
    out["first"] = s.place(state.first);
    out["latest"] = s.place(state.latest);
    return out;
}

/// Every inner state but the root: (length, shortest, length of the link, first, occurrences, {token: count}).
nb::typed<nb::list, nb::any> inner_states(const Sequences& s) {
    nb::typed<nb::list, nb::any> out;
    const std::vector<uint32_t> occurrences = s.automaton().occurrences();
    for (uint32_t n = 1; n < s.automaton().inner_states(); ++n) {
        const Automaton::Description state = s.automaton().describe(n | Automaton::kInner);
        nb::dict edges;
        for (size_t e = 0; e < state.tokens.size(); ++e) edges[nb::int_(state.tokens[e])] = state.counts[e];
        out.append(nb::make_tuple(state.length, state.shortest, s.automaton().describe(state.link).length, s.place(state.first),
                                  occurrences[n], edges));
    }
    return out;
}

void bind_automaton(nb::module_& m) {
    nb::class_<Sequences>(m, "Automaton", "An online suffix automaton over many growing sequences. Not for several threads at a time.")
        .def(nb::init<bool>(), "occurrences"_a = false, "Counts every occurrence, or novelties only.")
        .def("begin", &Sequences::begin, "A new sequence's number.")
        .def("extend", &Sequences::extend, "sequence"_a, "tokens"_a, Released())
        .def("match_length", &Sequences::match_length, "sequence"_a, "Length of the sequence's longest suffix that occurs elsewhere too.")
        .def("find", &found, "tokens"_a, "What is known of the longest suffix of the tokens that occurs.")
        .def("advance_steps", [](const Sequences& s, Tokens tokens) {
            std::vector<uint32_t> steps;
            Automaton::Cursor cursor;
            for (const Token token : tokens) {
                steps.push_back(1);
                while (!s.automaton().advance_once(cursor, token)) ++steps.back();
            }
            return steps;
        }, "tokens"_a, "How many suffixes each token of a text tries.")
        .def("contexts", [](const Sequences& s, Tokens tokens) {
            std::vector<Described> out;
            const auto add = [&](const Automaton::Context& context) {
                auto& [length, total, latest, edges] = out.emplace_back();
                length = context.length, total = context.total, latest = context.latest;
                for (uint32_t e = 0; e < context.size; ++e) edges.emplace_back(context.tokens[e], context.counts[e]);
            };
            Automaton::Walk walk = s.automaton().walk(s.cursor_after(tokens));
            for (Automaton::Context context; walk.next(context);) add(context);
            add(s.automaton().usual());
            return out;
        }, "tokens"_a, "[(length, total, latest, [(token, count)])], longest first, the empty context last.")
        .def("inner_states", &inner_states, "[(length, shortest, length of the link, first, occurrences, {token: count})]")
        .def_prop_ro("size", [](const Sequences& s) { return s.automaton().size(); })
        .def_prop_ro("num_inner_states", [](const Sequences& s) { return s.automaton().inner_states(); })
        .def_prop_ro("link_steps", [](const Sequences& s) { return s.automaton().link_steps(); })
        .def_prop_ro("bytes", [](const Sequences& s) { return s.automaton().bytes(); })
        .def("check_integrity", [](const Sequences& s) { s.automaton().check_integrity(); });
    m.attr("COUNTED") = Automaton::kCounted;
    m.def("time_extends", [](Tokens tokens, bool occurrences) {
        return own(released([&] {
            std::vector<float> microseconds;
            microseconds.reserve(tokens.size());
            Automaton automaton(occurrences ? Counting::occurrences : Counting::novelties);
            Automaton::Sequence sequence = automaton.begin();
            for (const int32_t token : tokens) {
                const auto begun = std::chrono::steady_clock::now();
                automaton.extend(sequence, token);
                microseconds.push_back(std::chrono::duration<float, std::micro>(std::chrono::steady_clock::now() - begun).count());
            }
            return microseconds;
        }));
    }, "tokens"_a, "occurrences"_a = false, "Microseconds of each single extend, for benchmarks.");
}

// ---- the frozen index ----------------------------------------------------------------------------------------------

TokenizerHash hash_of(const nb::bytes& bytes) {
    TokenizerHash hash;
    if (bytes.size() != hash.size()) throw InputError("The tokenizer hash has ", bytes.size(), " bytes; expected 32.");
    std::copy_n(static_cast<const uint8_t*>(bytes.data()), hash.size(), hash.begin());
    return hash;
}

using DescribedFrozen = std::tuple<uint32_t, uint32_t, int32_t, int32_t, std::vector<std::pair<int32_t, uint32_t>>>;

FrozenIndex::Cursor cursor_after(const FrozenIndex& index, std::span<const int32_t> tokens) {
    FrozenIndex::Cursor cursor;
    for (const int32_t token : tokens) index.advance(cursor, token);
    return cursor;
}

/// A number for each token of a text, from the match that ends there.
template <class Number>
std::vector<int32_t> after_each(const FrozenIndex& index, Tokens tokens, Number&& number) {
    return released([&] {
        std::vector<int32_t> out;
        FrozenIndex::Cursor cursor;
        for (const int32_t token : tokens) {
            index.advance(cursor, token);
            out.push_back(number(cursor));
        }
        return out;
    });
}

std::vector<DescribedFrozen> described(const FrozenIndex& index, const FrozenIndex::Cursor& cursor, uint32_t width) {
    std::vector<DescribedFrozen> all;
    index.matches(cursor, width, [&](const FrozenIndex::Context& context) {
        auto& [length, total, latest, first, top] = all.emplace_back();
        length = context.length, total = context.total;
        latest = context.latest_token, first = context.first_token;
        for (const Continuation& c : context.top) top.emplace_back(c.token, c.count);
        return true;
    });
    return all;
}

Names summary_of(const FrozenIndex& index) {
    const frozen::Header& header = index.header();
    Names sections, result;
    for (uint32_t i = 0; i < frozen::kSections; ++i) sections[frozen::kSectionNames[i]] = header.sections[i].length;
    result["path"] = index.path();
    result["version"] = header.version;
    result["file_bytes"] = header.file_length;
    result["tokens"] = header.tokens;
    result["documents"] = header.documents;
    result["vocabulary"] = header.vocabulary;
    result["max_context"] = header.max_context;
    result["tokenizer_hash"] = nb::bytes(reinterpret_cast<const char*>(header.tokenizer_hash), sizeof header.tokenizer_hash);
    result["section_bytes"] = sections;
    return result;
}

void bind_frozen_index(nb::module_& m) {
    nb::class_<FrozenIndex>(m, "FrozenIndex", "An immutable index over a corpus file. Threads may share it.")
        .def_static("open", [](const std::string& path, const std::optional<nb::bytes>& tokenizer_hash) {
            std::optional<TokenizerHash> expected;
            if (tokenizer_hash) expected = hash_of(*tokenizer_hash);
            return released([&] { return FrozenIndex::open(path, expected); });
        }, "path"_a, "tokenizer_hash"_a = nb::none())
        .def("summary", &summary_of)
        .def("verify", &FrozenIndex::verify, Released())
        .def("advance", [](const FrozenIndex& index, Tokens tokens) {
            const auto cursor = cursor_after(index, tokens);
            return std::tuple(cursor.length, cursor.lo, cursor.hi);
        }, "tokens"_a, Released(), "(length, lo, hi) of the longest suffix of the tokens that occurs.")
        .def("advance_steps", [](const FrozenIndex& index, Tokens tokens) {
            std::vector<uint32_t> steps;
            FrozenIndex::Cursor cursor;
            for (const int32_t token : tokens) steps.push_back(index.advance(cursor, token));
            return steps;
        }, "tokens"_a, "How many entries of the file's tables each token of a text searches.")
        .def("contexts", [](const FrozenIndex& index, Tokens tokens, uint32_t width) {
            return described(index, cursor_after(index, tokens), width);
        }, "tokens"_a, "width"_a = 8, Released(), "[(length, total, latest, first, [(token, count)])], longest first.")
        .def("continuation", [](const FrozenIndex& index, Tokens tokens, uint32_t limit, bool latest) {
            return own(released([&] {
                const auto cursor = cursor_after(index, tokens);
                const uint32_t position = latest ? index.latest(cursor) : index.first(cursor);
                if (position == FrozenIndex::kNoPosition) return std::vector<int32_t>();
                const auto text = index.following(position, limit);
                return std::vector<int32_t>(text.begin(), text.end());
            }));
        }, "tokens"_a, "limit"_a, "latest"_a = true,
           "What follows the last (or first) occurrence of the longest suffix, up to the end of its document.")
        .def("contexts_shortened", [](const FrozenIndex& index, Tokens tokens, uint32_t length, uint32_t width) {
            auto cursor = cursor_after(index, tokens);
            index.shorten(cursor, length);
            return described(index, cursor, width);
        }, "tokens"_a, "length"_a, "width"_a = 8, Released(), "contexts() after the match was cut to `length` tokens.")
        .def("match_lengths", [](const FrozenIndex& index, Tokens tokens) {
            return own(after_each(index, tokens, [](const FrozenIndex::Cursor& cursor) { return static_cast<int32_t>(cursor.length); }));
        }, "tokens"_a, "The length of the match after each token.")
        .def("count_contexts", [](const FrozenIndex& index, Tokens tokens, uint32_t width) {
            return own(after_each(index, tokens, [&](const FrozenIndex::Cursor& cursor) {
                int32_t count = 0;
                index.matches(cursor, width, [&](const FrozenIndex::Context&) { return ++count, true; });
                return count;
            }));
        }, "tokens"_a, "width"_a = 8, "How many contexts a query after each token visits.");
}

void bind_frozen_builder(nb::module_& m) {
    nb::class_<FrozenBuilder>(m, "FrozenBuilder", "Writes a corpus file; not for several threads at a time.")
        .def("__init__", [](FrozenBuilder* self, std::string path, uint32_t vocabulary, const nb::bytes& tokenizer_hash,
                            uint32_t max_context, uint64_t memory_bytes, uint32_t threads) {
            new (self) FrozenBuilder(std::move(path),
                                     {vocabulary, hash_of(tokenizer_hash), max_context, memory_bytes, threads});
        }, "path"_a, nb::kw_only(), "vocabulary"_a, "tokenizer_hash"_a, "max_context"_a = 32,
           "memory_bytes"_a = uint64_t{1} << 30, "threads"_a = 2)
        .def("add_document", &FrozenBuilder::add_document, "tokens"_a, Released())
        .def("finish", [](FrozenBuilder& builder, const std::optional<Reporter>& progress) {
            Progress report;
            if (progress) report = [&](const char* stage, double fraction) {
                const nb::gil_scoped_acquire held;
                (*progress)(stage, fraction);
            };
            released([&] { builder.finish(report); });
        }, "progress"_a = nb::none())
        .def("abandon", [](FrozenBuilder& builder) {
            if (builder.finishing()) throw StateError("the builder is at work; wait until finish() returns");
            builder.abandon();
        })
        .def_prop_ro("tokens", &FrozenBuilder::tokens)
        .def_prop_ro("documents", &FrozenBuilder::documents);
}

void bind_levels(nb::module_& m) {
    m.def("cpu_levels", [] {
        std::vector<std::string> names;
        for (const Kernels* level : levels()) names.emplace_back(level->name);
        return names;
    }, "The levels of processors that this machine can run, the best first.");
    m.def("cpu_level", [] { return std::string(level_of().name); },
          "The level in use: the best, or what FORESAY_CPU names. InputError if that cannot be run here.");
    m.def("better_cpu_levels", &better_levels,
          "The levels of this kind of processor that are better than the one in use, the best first, and why each is not used.");
}

}  // namespace
}  // namespace foresay

NB_MODULE(_core, m) {
    m.doc() = "The C++ core of foresay. Use the classes of foresay, not these.";
    foresay::bind_errors();
    foresay::bind_frozen_index(m);
    foresay::bind_frozen_builder(m);
    foresay::bind_automaton(m);
    foresay::bind_drafter(m);
    foresay::bind_budget(m);
    foresay::bind_recycle(m);
    foresay::bind_sampling(m);
    foresay::bind_attention(m);
    foresay::bind_linear(m);
    foresay::bind_decoder(m);
    foresay::bind_paged(m);
    foresay::bind_levels(m);
    m.def("build_info", [] {
        foresay::Names info;
        info["compiler"] = __VERSION__;
        info["sanitized"] = FORESAY_SANITIZERS;  // by what; empty: by nothing
        return info;
    });
}
