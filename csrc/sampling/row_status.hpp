// What became of a row of logits; RowStatus of src/foresay/sampling/processors.py says what each means.
#pragma once

#include <cstdint>

namespace foresay {

struct RowStatus {
    enum Value : uint8_t { kGood, kNotReached, kNan, kInfinite, kEmpty };
};

}  // namespace foresay
