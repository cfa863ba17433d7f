#include "recycle/top_k.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "errors.hpp"

namespace foresay {
namespace {

constexpr float kNews = 0.6f;  // weight of what the target said last
constexpr size_t kFirstSlots = 1024;
constexpr uint64_t kHashed = uint64_t{1} << 63;

/// A chance in a byte: sixteenths of a nat below certainty.
uint8_t level_of(float chance) { return static_cast<uint8_t>(std::clamp(std::lround(-16.f * std::log(std::max(chance, 1e-7f))), 0L, 255L)); }

const std::array<float, 256>& chances() {
    static const std::array<float, 256> table = [] {
        std::array<float, 256> made{};
        for (size_t level = 0; level < made.size(); ++level) made[level] = std::exp(-static_cast<float>(level) / 16.f);
        return made;
    }();
    return table;
}

/// Of a context of two tokens and more; never 0, and never a token id.
uint64_t hash_of(std::span<const Token> context) {
    uint64_t hash = context.size();
    for (const Token token : context) {
        hash = (hash ^ static_cast<uint32_t>(token)) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 29;
    }
    return hash | kHashed;
}

}  // namespace

TopKTable::TopKTable(uint32_t k, uint32_t orders, size_t most_bytes) : k_(k), orders_(orders), most_slots_(0) {
    if (k == 0 || k > kMostLikely) throw InputError("k is ", k, "; expected 1 to ", kMostLikely);
    if (orders == 0 || orders > kMostOrders) throw InputError("orders is ", orders, "; expected 1 to ", kMostOrders);
    for (size_t slots = kFirstSlots; slots <= most_bytes / slot_bytes() && slots < (size_t{1} << 40); slots *= 2) most_slots_ = slots;
}

TopKTable::Row TopKTable::row_of(Token token) {
    const size_t page = static_cast<size_t>(token) / kPage, at = static_cast<size_t>(token) % kPage * k_;
    if (page >= pages_.size()) pages_.resize(page + 1);
    if (!pages_[page]) {
        auto made = std::make_unique<Page>();
        made->tokens.assign(size_t{kPage} * k_, -1);
        made->levels.assign(size_t{kPage} * k_, 255);
        pages_[page] = std::move(made);
    }
    return {&pages_[page]->tokens[at], &pages_[page]->levels[at]};
}

/// The row of a hash, which is made, in the place of the one that was learned longest ago if need be.
TopKTable::Row TopKTable::row_of(uint64_t hash) {
    if (hashes_.empty() || (used_ * 4 > hashes_.size() * 3 && hashes_.size() < most_slots_)) grow();
    const size_t first = (hash % (hashes_.size() / kWays)) * kWays;
    size_t at = first;
    for (size_t way = first; way < first + kWays; ++way) {
        if (hashes_[way] == hash || hashes_[way] == 0) {
            at = way;
            break;
        }
        if (clock_ - ages_[way] > clock_ - ages_[at]) at = way;
    }
    if (hashes_[at] != hash) {
        used_ += hashes_[at] == 0;
        hashes_[at] = hash;
        std::fill_n(&tokens_[at * k_], k_, -1);
    }
    ages_[at] = ++clock_;
    return slot(at);
}

void TopKTable::grow() {
    const size_t slots = hashes_.empty() ? kFirstSlots : hashes_.size() * 2;
    std::vector<uint64_t> hashes(slots, 0);
    std::vector<uint32_t> ages(slots, 0);
    std::vector<Token> tokens(slots * k_, -1);
    std::vector<uint8_t> levels(slots * k_, 255);
    hashes.swap(hashes_), ages.swap(ages_), tokens.swap(tokens_), levels.swap(levels_);
    used_ = 0;
    for (size_t old = 0; old < hashes.size(); ++old) {
        if (hashes[old] == 0) continue;
        const size_t first = (hashes[old] % (slots / kWays)) * kWays;
        for (size_t way = first; way < first + kWays; ++way) {
            if (hashes_[way] != 0) continue;
            hashes_[way] = hashes[old], ages_[way] = ages[old];
            std::copy_n(&tokens[old * k_], k_, &tokens_[way * k_]);
            std::copy_n(&levels[old * k_], k_, &levels_[way * k_]);
            ++used_;
            break;
        }
    }
}

void TopKTable::read(const Token* tokens, const uint8_t* levels, TopK& out) const {
    out.size = 0;
    for (uint32_t i = 0; i < k_ && tokens[i] >= 0; ++i) {
        out.tokens[i] = tokens[i];
        out.chances[i] = chances()[levels[i]];
        out.size = i + 1;
    }
}

void TopKTable::mix(Row row, const Token* tokens, const float* given) const {
    struct Entry {
        float chance;
        Token token;
    };
    std::array<Entry, 2 * kMostLikely> all;
    size_t count = 0;
    const bool known = row.tokens[0] >= 0;
    for (uint32_t i = 0; i < k_ && tokens[i] >= 0; ++i) all[count++] = {known ? kNews * given[i] : given[i], tokens[i]};
    for (uint32_t i = 0; known && i < k_ && row.tokens[i] >= 0; ++i) {
        const float chance = (1 - kNews) * chances()[row.levels[i]];
        const auto same = std::find_if(all.begin(), all.begin() + count, [&](const Entry& entry) { return entry.token == row.tokens[i]; });
        if (same != all.begin() + count) same->chance += chance;
        else all[count++] = {chance, row.tokens[i]};
    }
    std::stable_sort(all.begin(), all.begin() + count, [](const Entry& a, const Entry& b) { return a.chance > b.chance; });
    for (uint32_t i = 0; i < k_; ++i) {
        row.tokens[i] = i < count ? all[i].token : -1;
        row.levels[i] = i < count ? level_of(all[i].chance) : 255;
    }
}

void TopKTable::learn(std::span<const Token> context, const Token* tokens, const float* logprobs) {
    if (context.empty() || tokens[0] < 0) return;
    std::array<float, kMostLikely> given;
    for (uint32_t i = 0; i < k_; ++i) given[i] = tokens[i] < 0 ? 0.f : std::exp(std::min(logprobs[i], 0.f));
    if (context.back() < kMostSingle) mix(row_of(context.back()), tokens, given.data());
    for (uint32_t order = 2; most_slots_ && order <= std::min<size_t>(orders_, context.size()); ++order)
        mix(row_of(hash_of(context.last(order))), tokens, given.data());
}

bool TopKTable::find(std::span<const Token> context, uint32_t order, TopK& out) const {
    if (order > context.size()) return false;
    out.size = 0;
    if (order == 1) {
        const size_t token = static_cast<size_t>(context.back()), page = token / kPage;
        if (page >= pages_.size() || !pages_[page]) return false;
        read(&pages_[page]->tokens[token % kPage * k_], &pages_[page]->levels[token % kPage * k_], out);
        return out.size > 0;
    }
    if (hashes_.empty()) return false;
    const uint64_t hash = hash_of(context.last(order));
    const size_t first = (hash % (hashes_.size() / kWays)) * kWays;
    for (size_t way = first; way < first + kWays; ++way)
        if (hashes_[way] == hash) {
            read(&tokens_[way * k_], &levels_[way * k_], out);
            return out.size > 0;
        }
    return false;
}

TopKArrays TopKTable::arrays() const {
    TopKArrays out;
    const auto put = [&](uint64_t key, const Token* tokens, const uint8_t* levels) {
        out.keys.push_back(key);
        out.tokens.insert(out.tokens.end(), tokens, tokens + k_);
        out.levels.insert(out.levels.end(), levels, levels + k_);
    };
    for (size_t page = 0; page < pages_.size(); ++page)
        for (size_t i = 0; pages_[page] && i < kPage; ++i)
            if (pages_[page]->tokens[i * k_] >= 0) put(page * kPage + i, &pages_[page]->tokens[i * k_], &pages_[page]->levels[i * k_]);
    std::vector<size_t> order;
    for (size_t at = 0; at < hashes_.size(); ++at)
        if (hashes_[at]) order.push_back(at);
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return clock_ - ages_[a] > clock_ - ages_[b]; });  // oldest first
    for (const size_t at : order) put(hashes_[at], &tokens_[at * k_], &levels_[at * k_]);
    return out;
}

void TopKTable::add(const TopKArrays& arrays) {
    const size_t rows = arrays.keys.size();
    if (arrays.tokens.size() != rows * k_ || arrays.levels.size() != rows * k_)
        throw InputError("there are ", rows, " keys, ", arrays.tokens.size(), " tokens and ", arrays.levels.size(), " levels; expected ",
                         k_, " of each for a key");
    for (const uint64_t key : arrays.keys)
        if (!(key & kHashed) && key >= static_cast<uint64_t>(kMostSingle))
            throw InputError("a key is ", key, "; expected a token id below ", kMostSingle, " or a hash");
    for (const Token token : arrays.tokens)
        if (token < -1 || token == INT32_MAX) throw InputError("a token is ", token, "; expected a token id, or -1 for none");
    for (size_t row = 0; row < rows; ++row) {
        const Token* const tokens = &arrays.tokens[row * k_];
        if (tokens[0] < 0 || ((arrays.keys[row] & kHashed) && !most_slots_)) continue;
        const Row to = arrays.keys[row] & kHashed ? row_of(arrays.keys[row]) : row_of(static_cast<Token>(arrays.keys[row]));
        std::copy_n(tokens, k_, to.tokens);
        std::copy_n(&arrays.levels[row * k_], k_, to.levels);
    }
}

void TopKTable::clear() {
    pages_.clear();
    hashes_.clear(), ages_.clear(), tokens_.clear(), levels_.clear();
    hashes_.shrink_to_fit(), ages_.shrink_to_fit(), tokens_.shrink_to_fit(), levels_.shrink_to_fit();
    used_ = 0;
}

size_t TopKTable::bytes() const noexcept {
    size_t pages = 0;
    for (const auto& page : pages_) pages += page != nullptr;
    return pages * kPage * k_ * (sizeof(Token) + 1) + pages_.capacity() * sizeof(void*) + hashes_.size() * slot_bytes();
}

}  // namespace foresay
