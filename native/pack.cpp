#include "pack.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace outrider {
namespace {

struct Storage {
    const char* name;
    Format format;
    int block;  // elements
    int bytes;  // of a block
};

constexpr Storage kStorages[] = {
    {"Q4_0", Format::kQ4, 32, 18}, {"Q4_1", Format::kQ4Min, 32, 20}, {"Q8_0", Format::kQ8, 32, 34},
    {"F32", Format::kF32, 1, 4},   {"F16", Format::kF16, 1, 2},      {"BF16", Format::kBF16, 1, 2},
};

const Storage& find_storage(const std::string& type) {
    for (const Storage& storage : kStorages)
        if (type == storage.name) return storage;
    throw std::invalid_argument("no kernel for weights of type " + type);
}

// One output's block of 32 inputs into its lane of a packed group.
void pack_four_bits(const uint8_t* codes, uint8_t* group, int lane) {
    uint8_t code[kGroup];
    for (int i = 0; i < 16; ++i) {
        code[i] = codes[i] & 15;
        code[i + 16] = codes[i] >> 4;
    }
    for (int step = 0; step < 4; ++step)
        for (int i = 0; i < 4; ++i)
            group[step * 64 + lane * 4 + i] = uint8_t(code[step * 8 + i] | code[step * 8 + 4 + i] << 4);
}

void pack_block(Format format, const uint8_t* block, uint8_t* group, int lane) {
    if (format == Format::kQ8) {
        for (int step = 0; step < 8; ++step) std::memcpy(group + step * 64 + lane * 4, block + 2 + step * 4, 4);
        std::memcpy(group + 512 + lane * 2, block, 2);
    } else {
        const bool minimum = format == Format::kQ4Min;
        pack_four_bits(block + (minimum ? 4 : 2), group, lane);
        std::memcpy(group + 256 + lane * 2, block, 2);
        if (minimum) std::memcpy(group + 288 + lane * 2, block + 2, 2);
    }
}

}  // namespace

Arena::~Arena() {
    for (uint8_t* chunk : chunks_) std::free(chunk);
}

uint8_t* Arena::allocate(size_t size) {
    constexpr size_t kLargePage = size_t(2) << 20, kChunk = 16 * kLargePage;
    size = (size + 63) / 64 * 64;
    if (capacity_ - used_ < size) {
        const size_t capacity = std::max(kChunk, (size + kLargePage - 1) / kLargePage * kLargePage);
        auto* chunk = static_cast<uint8_t*>(std::aligned_alloc(kLargePage, capacity));
        if (!chunk) throw std::bad_alloc();
        chunks_.push_back(chunk);
        used_ = 0;
        capacity_ = capacity;
#if defined(__linux__)
        madvise(chunk, capacity, MADV_HUGEPAGE);  // a wish: without it everything works, slower
#endif
    }
    used_ += size;
    return chunks_.back() + used_ - size;
}

PackedWeight::PackedWeight(std::shared_ptr<Arena> arena, const std::string& type, const uint8_t* raw, size_t size,
                           int outputs, int inputs)
    : arena_(std::move(arena)) {
    const Storage& storage = find_storage(type);
    if (outputs < 1 || inputs < 1 || inputs % storage.block != 0)
        throw std::invalid_argument("a weight of type " + type + " needs inputs in multiples of " +
                                    std::to_string(storage.block));
    const size_t row_bytes = size_t(inputs / storage.block) * storage.bytes;
    if (size != row_bytes * size_t(outputs)) throw std::invalid_argument("a weight's bytes do not match its shape");

    weight_ = {storage.format, outputs, inputs, nullptr};
    const size_t per_tile = tile_bytes(storage.format, inputs);
    bytes_ = per_tile * size_t(weight_.tiles());
    uint8_t* memory = arena_->allocate(bytes_);
    weight_.data = memory;

    for (int tile = 0; tile < weight_.tiles(); ++tile) {
        uint8_t* out = memory + size_t(tile) * per_tile;
        const int lanes = std::min(kTile, outputs - tile * kTile);
        if (lanes < kTile) std::memset(out, 0, per_tile);
        const uint8_t* rows = raw + size_t(tile) * kTile * row_bytes;
        if (is_quantised(storage.format)) {
            for (int g = 0; g < inputs / kGroup; ++g, out += group_bytes(storage.format))
                for (int lane = 0; lane < lanes; ++lane)
                    pack_block(storage.format, rows + lane * row_bytes + size_t(g) * storage.bytes, out, lane);
        } else {
            for (int i = 0; i < inputs; ++i)
                for (int lane = 0; lane < lanes; ++lane)
                    std::memcpy(out + (size_t(i) * kTile + lane) * storage.bytes,
                                rows + lane * row_bytes + size_t(i) * storage.bytes, storage.bytes);
        }
    }
}

}  // namespace outrider
