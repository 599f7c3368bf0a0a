// From a model file's weight blocks to the tiles that the kernels read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels.h"

namespace outrider {

// A packed weight and its memory.
class PackedWeight {
public:
    // `type` is the file's name of the storage ("Q4_0", "Q4_1", "Q8_0", "F16", "BF16", "F32"), `raw` its
    // [outputs][inputs] blocks, `size` their bytes. Throws std::invalid_argument where these do not fit together.
    PackedWeight(const std::string& type, const uint8_t* raw, size_t size, int outputs, int inputs);

    const Weight& view() const { return weight_; }
    size_t bytes() const { return bytes_; }

private:
    struct Free {
        void operator()(uint8_t* p) const { std::free(p); }
    };
    std::unique_ptr<uint8_t, Free> memory_;
    size_t bytes_ = 0;
    Weight weight_;
};

}  // namespace outrider
