// The target's likeliest next tokens, by context: what Token Recycling keeps.
//
// Of the last token, and of the last two, three and more, the table has the k tokens that the target found likeliest when it
// last stood behind them, with their probabilities. One token's row takes 5 k bytes, found by its id: 1.92 MiB for a
// vocabulary of 50,000 and k = 8. Longer contexts are found by a hash and bounded in bytes: the oldest of four places goes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace foresay {

using Token = int32_t;

inline constexpr uint32_t kMostLikely = 32;  // tokens of a row
inline constexpr uint32_t kMostOrders = 8;   // tokens of a context

/// Likeliest tokens, the likeliest first.
struct TopK {
    uint32_t size = 0;
    std::array<Token, kMostLikely> tokens;
    std::array<float, kMostLikely> chances;
};

/// A table as arrays, to be kept in a file.
struct TopKArrays {
    std::vector<uint64_t> keys;    // [rows] a token id, or a hash with its highest bit set
    std::vector<int32_t> tokens;   // [rows, k]; -1: none
    std::vector<uint8_t> levels;   // [rows, k] chances, see top_k.cpp
};

class TopKTable {
public:
    /// k likeliest tokens after contexts of up to `orders` tokens; `most_bytes` are for contexts of two and more.
    TopKTable(uint32_t k, uint32_t orders, size_t most_bytes);

    /// `tokens` and `logprobs` have the k likeliest after `context`, whose last token comes last. A row that is there already
    /// becomes the mean of both, cut to k.
    void learn(std::span<const Token> context, const Token* tokens, const float* logprobs);
    /// Whether there is a row for the last `order` tokens of `context`; it is in `out` then.
    bool find(std::span<const Token> context, uint32_t order, TopK& out) const;

    TopKArrays arrays() const;
    /// Adds the rows of `arrays`. Throws InputError for sizes, tokens or levels that cannot be of such a table; nothing has changed then.
    void add(const TopKArrays& arrays);
    void clear();

    size_t bytes() const noexcept;

private:
    struct Row {  // of a page or of the hashed part
        Token* tokens;
        uint8_t* levels;
    };
    struct Page {
        std::vector<Token> tokens;
        std::vector<uint8_t> levels;
    };
    static constexpr uint32_t kPage = 1024;       // tokens of a page
    static constexpr Token kMostSingle = 1 << 20;  // larger ids have no row
    static constexpr size_t kWays = 4;

    size_t slot_bytes() const noexcept { return sizeof(uint64_t) + sizeof(uint32_t) + k_ * (sizeof(Token) + 1); }
    Row row_of(Token token);
    Row row_of(uint64_t hash);
    Row slot(size_t at) { return {&tokens_[at * k_], &levels_[at * k_]}; }
    void grow();
    void read(const Token* tokens, const uint8_t* levels, TopK& out) const;
    void mix(Row row, const Token* tokens, const float* chances) const;

    uint32_t k_, orders_;
    size_t most_slots_;
    std::vector<std::unique_ptr<Page>> pages_;
    // The hashed part: slots in groups of kWays.
    std::vector<uint64_t> hashes_;  // 0: nothing
    std::vector<uint32_t> ages_;    // when last learned
    std::vector<Token> tokens_;
    std::vector<uint8_t> levels_;
    size_t used_ = 0;
    uint32_t clock_ = 0;
};

}  // namespace foresay
