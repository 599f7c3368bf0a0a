// From a model file's weight blocks to the tiles that the kernels read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels.h"

namespace outrider {

// Memory for the weights of one model, in large pages where the system grants them. With small ones each pass would
// throw out the processor's whole page table cache, and all that comes after it would start with misses.
class Arena {
public:
    Arena() = default;
    ~Arena();
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;

    // `size` bytes, aligned to 64, which live as long as the arena. Throws std::bad_alloc.
    uint8_t* allocate(size_t size);

private:
    std::vector<uint8_t*> chunks_;
    size_t used_ = 0, capacity_ = 0;  // of the last chunk
};

// A packed weight; its memory is its arena's.
class PackedWeight {
public:
    // `type` is the file's name of the storage ("Q4_0", "Q4_1", "Q8_0", "F16", "BF16", "F32"), `raw` its
    // [outputs][inputs] blocks, `size` their bytes. Throws std::invalid_argument where these do not fit together.
    PackedWeight(std::shared_ptr<Arena> arena, const std::string& type, const uint8_t* raw, size_t size, int outputs,
                 int inputs);

    const Weight& view() const { return weight_; }
    size_t bytes() const { return bytes_; }

private:
    std::shared_ptr<Arena> arena_;
    size_t bytes_ = 0;
    Weight weight_;
};

}  // namespace outrider
