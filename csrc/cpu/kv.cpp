#include "cpu/kv.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "errors.hpp"

namespace foresay {
namespace {

constexpr uint32_t kMaxLayers = 4096, kMaxHeads = 4096, kMaxDim = 4096;

void check(const char* name, uint32_t value, uint32_t most, size_t layer) {
    if (value == 0 || value > most) throw InputError(name, " of layer ", layer, " is ", value, "; expected 1 to ", most);
}

/// A word with another low (0) or high (1) half.
uint32_t with_half(uint32_t word, size_t which, uint32_t half) { return which ? (word & 0xFFFF) | half << 16 : (word & 0xFFFF0000) | (half & 0xFFFF); }

uint32_t rounded(uint32_t value, uint32_t step) { return (value + step - 1) / step * step; }

}  // namespace

Kv::Kv(std::vector<KvLayer> layers, Dtype dtype) : layers_(std::move(layers)), dtype_(dtype) {
    if (layers_.empty() || layers_.size() > kMaxLayers)
        throw InputError("there are ", layers_.size(), " layers; expected 1 to ", kMaxLayers);
    for (size_t i = 0; i < layers_.size(); ++i) {
        const KvLayer& layer = layers_[i];
        check("kv_heads", layer.heads, kMaxHeads, i);
        check("key_dim", layer.key_dim, kMaxDim, i);
        check("value_dim", layer.value_dim, kMaxDim, i);
        Place& place = places_.emplace_back();
        const bool small = dtype == Dtype::bfloat16;
        place.key_words = small ? rounded(layer.key_dim, 32) / 2 : layer.key_dim;
        place.value_words = rounded(layer.value_dim, 16) / (small ? 2 : 1);
        place.keys = words_;
        words_ += size_t{layer.heads} * place.key_words;
        place.values = words_;
        words_ += size_t{layer.heads} * place.value_words;
    }
    tails_.resize(layers_.size());
}

Kv::Use::Use(const Kv& kv) : kv_(&kv) {
    if (kv.used_.exchange(true, std::memory_order_acquire)) {
        kv_ = nullptr;
        throw StateError("the Kv is in use by another thread; wait until that call returns");
    }
}

uint32_t Kv::longest_tail() const noexcept { return *std::max_element(tails_.begin(), tails_.end()); }

void Kv::end_step() noexcept {
    std::fill(tails_.begin(), tails_.end(), 0);
    ++version_;
}

uint32_t Kv::grown(uint64_t tokens) const {
    if (tokens > kMaxTokens) throw CapacityError("room for ", tokens, " tokens is too much; expected at most ", kMaxTokens);
    return rounded(static_cast<uint32_t>(std::max<uint64_t>(tokens, std::min<uint64_t>(kMaxTokens, 2 * uint64_t{capacity_}))), kStep);
}

slab::Array<uint32_t> Kv::room_for(uint32_t capacity) const {
    if (words_ > SIZE_MAX / 8 / capacity) throw std::bad_alloc();
    const size_t count = words_ * capacity;
    return {static_cast<uint32_t*>(slab::allocate(count * sizeof(uint32_t))), slab::Release<uint32_t>{count}};
}

void Kv::copy_tokens(const Kv& source, uint32_t tokens, uint32_t* memory, uint32_t capacity) const noexcept {
    if (tokens == 0) return;
    const auto copy = [&](size_t before, uint32_t heads, size_t words, uint32_t count) {
        for (uint32_t head = 0; head < heads; ++head)
            std::memcpy(memory + capacity * (before + head * words), source.memory_.get() + source.capacity_ * (before + head * words),
                        words * count * sizeof(uint32_t));
    };
    for (size_t i = 0; i < layers_.size(); ++i) {
        copy(places_[i].keys, layers_[i].heads, places_[i].key_words, rounded(tokens, kKeyBlock));
        copy(places_[i].values, layers_[i].heads, places_[i].value_words, rounded(tokens, 2));
    }
}

void Kv::reserve(uint64_t tokens) {
    const Use use(*this);
    if (tokens <= capacity_) return;
    const uint32_t capacity = grown(tokens);
    auto memory = room_for(capacity);
    copy_tokens(*this, length_ + longest_tail(), memory.get(), capacity);
    memory_ = std::move(memory), capacity_ = capacity;
}

void Kv::keep(std::span<const int32_t> path) {
    const Use use(*this);
    const auto least = std::min_element(tails_.begin(), tails_.end());
    for (size_t i = 0; i < path.size(); ++i) {
        if (path[i] < 0 || static_cast<uint32_t>(path[i]) >= *least)
            throw InputError("path[", i, "] is ", path[i], ", but layer ", least - tails_.begin(), " has ", *least, " rows of the last step");
        if (i > 0 && path[i] <= path[i - 1])
            throw InputError("path[", i, "] is ", path[i], " after ", path[i - 1], "; a path's rows increase");
    }
    size_t moved = 0;  // rows that are not yet in their place
    while (moved < path.size() && static_cast<size_t>(path[moved]) == moved) ++moved;
    for (uint32_t layer = 0; layer < layers_.size() && moved < path.size(); ++layer) {
        const Place& place = places_[layer];
        for (uint32_t head = 0; head < layers_[layer].heads; ++head) {
            uint32_t *keys = at(place.keys, head, place.key_words), *values = at(place.values, head, place.value_words);
            for (size_t i = moved; i < path.size(); ++i) {
                const size_t from = length_ + static_cast<size_t>(path[i]), to = length_ + i;
                const uint32_t* source = keys + from / kKeyBlock * kKeyBlock * place.key_words + from % kKeyBlock;
                uint32_t* target = keys + to / kKeyBlock * kKeyBlock * place.key_words + to % kKeyBlock;
                for (uint32_t word = 0; word < place.key_words; ++word) target[word * kKeyBlock] = source[word * kKeyBlock];
                if (dtype_ == Dtype::float32) {
                    std::memcpy(values + to * place.value_words, values + from * place.value_words, place.value_words * sizeof(uint32_t));
                    continue;
                }
                const uint32_t columns = 2 * place.value_words;
                const uint32_t* old_row = values + from / 2 * columns;
                uint32_t* row = values + to / 2 * columns;
                for (uint32_t column = 0; column < columns; ++column)
                    row[column] = with_half(row[column], to % 2, old_row[column] >> 16 * (from % 2));
            }
        }
    }
    length_ += static_cast<uint32_t>(path.size());
    end_step();
}

void Kv::cut(uint32_t length) {
    const Use use(*this);
    if (length > length_) throw InputError("cannot cut to ", length, " tokens; there are ", length_);
    length_ = length;
    end_step();
}

void Kv::copy_from(const Kv& other, uint32_t length) {
    if (&other == this) return cut(length);
    const Use use(*this), others(other);
    if (other.layers_ != layers_ || other.dtype_ != dtype_)
        throw InputError("the other Kv has another layout; expected the same layers and dtype");
    if (length > other.length_) throw InputError("cannot copy ", length, " tokens; the other Kv has ", other.length_);
    if (length > capacity_) {
        const uint32_t capacity = grown(length);
        memory_ = room_for(capacity), capacity_ = capacity;
    }
    copy_tokens(other, length, memory_.get(), capacity_);
    length_ = length;
    end_step();
}

void Kv::put(uint32_t layer, uint32_t head, uint32_t row, const void* key, const void* value) noexcept {
    const Place& place = places_[layer];
    const uint32_t key_dim = layers_[layer].key_dim, value_dim = layers_[layer].value_dim;
    const size_t slot = size_t{length_} + row;
    uint32_t* keys = at(place.keys, head, place.key_words) + slot / kKeyBlock * kKeyBlock * place.key_words + slot % kKeyBlock;
    uint32_t* values = at(place.values, head, place.value_words);
    if (dtype_ == Dtype::float32) {
        const auto* numbers = static_cast<const char*>(key);
        for (uint32_t i = 0; i < key_dim; ++i) std::memcpy(&keys[i * kKeyBlock], numbers + i * sizeof(uint32_t), sizeof(uint32_t));
        values += slot * place.value_words;
        std::memcpy(values, value, value_dim * sizeof(uint32_t));
        std::fill(values + value_dim, values + place.value_words, 0);
        return;
    }
    const auto *from = static_cast<const uint16_t*>(key), *numbers = static_cast<const uint16_t*>(value);
    for (uint32_t i = 0; i < key_dim / 2; ++i) keys[i * kKeyBlock] = from[2 * i] | uint32_t{from[2 * i + 1]} << 16;
    for (uint32_t i = key_dim / 2; i < place.key_words; ++i) keys[i * kKeyBlock] = 2 * i < key_dim ? from[2 * i] : 0;
    // Halves are written by themselves: another thread may be writing the other ones.
    auto* halves = reinterpret_cast<char*>(values + slot / 2 * 2 * place.value_words) + slot % 2 * sizeof(uint16_t);
    for (uint32_t i = 0; i < value_dim; ++i) std::memcpy(halves + i * sizeof(uint32_t), &numbers[i], sizeof(uint16_t));
    for (uint32_t i = value_dim; i < 2 * place.value_words; ++i) std::memset(halves + i * sizeof(uint32_t), 0, sizeof(uint16_t));
}

uint32_t Kv::rows(uint32_t layer) const {
    if (layer >= layers_.size()) throw InputError("layer ", layer, " does not exist; there are ", layers_.size());
    return length_ + tails_[layer];
}

template <class Number>
std::vector<Number> Kv::plain(uint32_t layer, bool want_values) const {
    const Use use(*this);
    const size_t tokens = rows(layer);
    const KvLayer& shape = layers_[layer];
    const Place& place = places_[layer];
    const size_t dim = want_values ? shape.value_dim : shape.key_dim;
    std::vector<Number> out(shape.heads * tokens * dim);
    for (uint32_t head = 0; head < shape.heads; ++head)
        for (size_t token = 0; token < tokens; ++token)
            for (uint32_t i = 0; i < dim; ++i) {
                Number& number = out[(head * tokens + token) * dim + i];
                const size_t halves = sizeof(Number) == 2 ? 2 : 1;  // of a word: neighbours of a key, tokens of values
                const size_t high = (want_values ? token : i) % halves;
                const uint32_t* from = want_values ? values(layer, head) + token / halves * halves * place.value_words + i
                                                   : keys(layer, head) + (token / kKeyBlock * place.key_words + i / halves) * kKeyBlock + token % kKeyBlock;
                const uint32_t bits = *from >> 16 * high;
                std::memcpy(&number, &bits, sizeof(Number));  // little-endian, as all that is supported
            }
    return out;
}
template std::vector<float> Kv::plain(uint32_t, bool) const;
template std::vector<uint16_t> Kv::plain(uint32_t, bool) const;

void Kv::check_integrity() const {
    const Use use(*this);
    const auto require = [](bool holds, const char* promise) {
        if (!holds) throw std::logic_error(std::string("a Kv breaks: ") + promise);
    };
    require(capacity_ % kStep == 0, "the capacity is a multiple of 64");
    require(uint64_t{length_} + longest_tail() <= capacity_, "the rows have room");
    require((memory_ != nullptr) == (capacity_ > 0), "there is memory if there is capacity");
    require(reinterpret_cast<uintptr_t>(memory_.get()) % 64 == 0, "memory is aligned to 64 bytes");
    size_t words = 0;
    for (size_t i = 0; i < layers_.size(); ++i) {
        require(places_[i].keys == words, "keys follow what is before them");
        require(capacity_ * words % 16 == 0, "heads are aligned to 64 bytes");
        words += size_t{layers_[i].heads} * places_[i].key_words;
        require(places_[i].values == words, "values follow the keys");
        require(places_[i].value_words % (dtype_ == Dtype::float32 ? 16 : 8) == 0, "rows of values are whole vectors");
        words += size_t{layers_[i].heads} * places_[i].value_words;
        for (uint32_t head = 0; head < layers_[i].heads && dtype_ == Dtype::bfloat16; ++head)
            for (size_t token = 0; token < length_ + size_t{tails_[i]}; ++token)
                for (uint32_t word = layers_[i].key_dim / 2; word < places_[i].key_words; ++word)
                    require(keys(static_cast<uint32_t>(i), head)[(token / kKeyBlock * places_[i].key_words + word) * kKeyBlock + token % kKeyBlock] >>
                                    (2 * word < layers_[i].key_dim ? 16 : 0) == 0, "a key is filled up with zeros");
    }
    require(words == words_, "layers fill the memory");
}

}  // namespace foresay
