// The core's exceptions. bind.cpp turns each into its namesake in foresay.errors; every message is a sentence that names
// the value and what would be valid.
#pragma once

#include <stdexcept>
#include <string>

namespace foresay {

struct InputError : std::invalid_argument {
    using std::invalid_argument::invalid_argument;
};
struct StateError : InputError {
    using InputError::InputError;
};
struct UnknownGroup : InputError {
    using InputError::InputError;
};
struct CapacityError : std::length_error {
    using std::length_error::length_error;
};

struct CorpusError : std::runtime_error {  // damaged, truncated, foreign, or of another version
    using std::runtime_error::runtime_error;
};
struct TokenizerMismatch : CorpusError {   // sound, but built with another tokenizer
    using CorpusError::CorpusError;
};

}  // namespace foresay
