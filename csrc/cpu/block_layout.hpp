// From the blocks of a GGUF file to the panels of the kernels, as csrc/cpu/block_formats.hpp describes both.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/block_formats.hpp"

namespace foresay::blocks {

/// The stored rows of the outputs of one panel; the last panel may have fewer than its width.
struct StoredRows {
    const uint8_t* const* at;
    size_t count;
};

/// What a file must not hold: a scale, or a number that is not quantised, which is infinite or none.
struct Damage {
    size_t output = 0, place = 0;  // in the panel; the block of 32 inputs, or the number
    bool found = false;
};

/// Lays the rows out as one panel of `wide` outputs; the places of those that are lacking are left as they are. Bytes of Q8_0 are
/// stored 128 above their values if `from_zero`. Where a damage is found, the panel is of no use.
Damage lay_out(Format format, const StoredRows& rows, size_t wide, size_t ins, bool from_zero, uint8_t* panel) noexcept;

}  // namespace foresay::blocks
