// The core's exceptions. bind.cpp turns each into its namesake in foresay.errors; every message is a sentence that names
// the value and what would be valid.
#pragma once

#include <stdexcept>
#include <string>
#include <type_traits>

namespace foresay {

/// Text as it is, numbers as std::to_string() writes them, one after the other.
template <class... Words>
std::string sentence(const Words&... words) {
    std::string out;
    const auto add = [&](const auto& word) {
        if constexpr (std::is_arithmetic_v<std::remove_cvref_t<decltype(word)>>) out += std::to_string(word);
        else out += word;
    };
    (add(words), ...);
    return out;
}

template <class Base>
struct Error : Base {
    template <class... Words>
    explicit Error(const Words&... words) : Base(sentence(words...)) {}
};

struct InputError : Error<std::invalid_argument> {
    using Error::Error;
};
struct StateError : InputError {
    using InputError::InputError;
};
struct UnknownGroup : InputError {
    using InputError::InputError;
};
struct CapacityError : Error<std::length_error> {
    using Error::Error;
};

struct CorpusError : Error<std::runtime_error> {  // damaged, truncated, foreign, or of another version
    using Error::Error;
};
struct TokenizerMismatch : CorpusError {          // sound, but built with another tokenizer
    using CorpusError::CorpusError;
};

}  // namespace foresay
