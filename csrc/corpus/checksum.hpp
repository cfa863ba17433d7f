// XXH64 (Yann Collet's published algorithm): detects damage, not forgery.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace foresay {

namespace checksum_detail {

inline constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87u;
inline constexpr uint64_t kPrime2 = 0xC2B2AE3D27D4EB4Fu;
inline constexpr uint64_t kPrime3 = 0x165667B19E3779F9u;
inline constexpr uint64_t kPrime4 = 0x85EBCA77C2B2AE63u;
inline constexpr uint64_t kPrime5 = 0x27D4EB2F165667C5u;

template <class Word>
Word load(const unsigned char* from) {
    Word word;
    std::memcpy(&word, from, sizeof word);
    return word;
}

inline uint64_t mix(uint64_t lane, uint64_t word) {
    return std::rotl(lane + word * kPrime2, 31) * kPrime1;
}

inline uint64_t merge(uint64_t hash, uint64_t lane) {
    return (hash ^ mix(0, lane)) * kPrime1 + kPrime4;
}

}  // namespace checksum_detail

inline uint64_t checksum(const void* data, size_t length) {
    using namespace checksum_detail;
    auto at = static_cast<const unsigned char*>(data);
    const auto* end = at + length;
    uint64_t hash = kPrime5;
    if (length >= 32) {
        uint64_t a = kPrime1 + kPrime2, b = kPrime2, c = 0, d = 0 - kPrime1;
        for (; end - at >= 32; at += 32) {
            a = mix(a, load<uint64_t>(at));
            b = mix(b, load<uint64_t>(at + 8));
            c = mix(c, load<uint64_t>(at + 16));
            d = mix(d, load<uint64_t>(at + 24));
        }
        hash = std::rotl(a, 1) + std::rotl(b, 7) + std::rotl(c, 12) + std::rotl(d, 18);
        for (uint64_t lane : {a, b, c, d}) hash = merge(hash, lane);
    }
    hash += length;
    for (; end - at >= 8; at += 8)
        hash = std::rotl(hash ^ mix(0, load<uint64_t>(at)), 27) * kPrime1 + kPrime4;
    if (end - at >= 4) {
        hash = std::rotl(hash ^ load<uint32_t>(at) * kPrime1, 23) * kPrime2 + kPrime3;
        at += 4;
    }
    for (; at < end; ++at) hash = std::rotl(hash ^ *at * kPrime5, 11) * kPrime1;
    hash = (hash ^ hash >> 33) * kPrime2;
    hash = (hash ^ hash >> 29) * kPrime3;
    return hash ^ hash >> 32;
}

}  // namespace foresay
