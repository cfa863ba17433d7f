// Builds a frozen corpus file out of core (see frozen_format.hpp).
//
// Documents go straight to the text section of a temporary file beside the target; everything else is computed from the
// mapped file. Memory: what the options allow for sorting, and a few words per vocabulary entry and thread.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "corpus/frozen.hpp"

namespace foresay {

/// Called on the thread that calls finish(), with a stage's name and the fraction of it that is done. May throw.
using Progress = std::function<void(const char* stage, double fraction)>;

struct BuildOptions {
    uint32_t vocabulary = 0;
    TokenizerHash tokenizer_hash{};
    uint32_t max_context = 32;
    uint64_t memory_bytes = uint64_t{1} << 30;
    uint32_t threads = 2;
};

class FrozenBuilder {
public:
    /// Creates the temporary file. Throws InputError for options out of range, std::system_error.
    FrozenBuilder(std::string path, const BuildOptions& options);
    FrozenBuilder(const FrozenBuilder&) = delete;
    FrozenBuilder& operator=(const FrozenBuilder&) = delete;

    /// Removes the temporary file unless finish() has succeeded.
    ~FrozenBuilder();

    /// Appends a document; an empty one adds nothing. Throws InputError, and then has added nothing, if a token is
    /// outside the vocabulary or the corpus too large; std::system_error if the disk is full.
    void add_document(std::span<const int32_t> tokens);

    /// Builds the index and renames it to the path, where a half-written file never appears. Whether it succeeds or
    /// throws (InputError for an empty corpus, std::system_error, or what `progress` throws), the builder can do
    /// nothing more afterwards.
    void finish(const Progress& progress = {});

    /// Removes the temporary file; the builder can do nothing more.
    void abandon() noexcept;

    bool finishing() const { return finishing_; }
    uint64_t tokens() const { return header_.tokens; }
    uint64_t documents() const { return header_.documents; }

private:
    void write(const int32_t* tokens, size_t count);
    void close_file() noexcept;
    [[noreturn]] void give_up();
    void reserve(uint64_t num_nodes);
    void sort_contexts();
    void collect_origins();
    void collect_nodes();
    void count_continuations();
    void seal();
    void require_open() const;
    void report(const char* stage, double fraction) const { if (progress_) progress_(stage, fraction); }
    template <class T>
    T* section(size_t index) const {
        return reinterpret_cast<T*>(file_.data() + header_.sections[index].offset);
    }

    std::string path_, temporary_;
    BuildOptions options_;
    int descriptor_ = -1;
    std::FILE* stream_ = nullptr;       // over it
    frozen::Header header_{};
    std::vector<uint64_t> counts_;      // [vocabulary] occurrences of each token
    MappedFile file_;
    Progress progress_;
    bool finishing_ = false;            // the progress callback may call back
};

namespace frozen {

/// Counts what follows the ranks of a node. `counts` is scratch: [vocabulary] zeros, and zeros again afterwards.
Tally tally_of(const Node& node, const int32_t* next, const uint32_t* positions, std::vector<uint32_t>& counts,
               std::vector<int32_t>& seen);

}  // namespace frozen
}  // namespace foresay
