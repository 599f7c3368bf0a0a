// What all linear layers share: the walk over tiles and blocks of rows, the write-back, and weights kept as floats.
#pragma once

#include "elementwise.h"

namespace outrider {
namespace {

// What to fetch while a group of the tiles up to tile_end is computed: the hardware's own prefetching stops at every
// page. Past the end of the tiles lies what somebody else will read: fetching goes on where this thread will, or else
// looks at what is at hand.
struct Ahead {
    const uint8_t* end;
    ptrdiff_t jump;
    bool once = streams_past_caches();

    Ahead(const LinearTask& task, int tile_end)
        : end(task.weight->tile(tile_end)), jump(task.next ? task.next - end : -ptrdiff_t(kFetchAhead)) {}

    void fetch(const uint8_t* data, size_t bytes) const {
        const uint8_t* at = data + kFetchAhead;
        if (at >= end) at += jump;
        if (once)
            for (size_t line = 0; line < bytes; line += 64) prefetch_once(at + line);
        else
            for (size_t line = 0; line < bytes; line += 64) prefetch(at + line);
    }
};

// Weights kept as floats: y = sum over the inputs in order, one fused multiply-add each.
template <Format kFormat, int kRows>
inline void linear_float_tile(const LinearTask& task, const uint8_t* tile, int first_row, Vec* acc) {
    const int inputs = task.weight->inputs;
    const float* x[kRows];
    for (int r = 0; r < kRows; ++r) {
        x[r] = task.x.row(first_row + r);
        acc[r] = splat(0);
    }
    for (int i = 0; i < inputs; ++i) {
        Vec w;
        if constexpr (kFormat == Format::kF32)
            w = load(reinterpret_cast<const float*>(tile) + size_t(i) * kTile);
        else if constexpr (kFormat == Format::kF16)
            w = load_half(reinterpret_cast<const uint16_t*>(tile) + size_t(i) * kTile);
        else
            w = load_bfloat(reinterpret_cast<const uint16_t*>(tile) + size_t(i) * kTile);
        for (int r = 0; r < kRows; ++r) acc[r] = fma(w, splat(x[r][i]), acc[r]);
    }
}

// Adds bias and residual to a tile's accumulators and writes them; the last tile of a weight may be partial.
inline void store_tile(const LinearTask& task, int tile, int row, Vec value) {
    const int output = tile * kTile;
    const int count = task.weight->outputs - output;
    const int column = task.first_output + output;
    if (task.bias) value = value + load_columns(task.bias + output, count);
    if (task.residual.data) value = value + load_columns(task.residual.row(row) + column, count);
    store_columns(task.y.row(row) + column, value, count);
}

// Runs `compute(tile data, first row, number of rows, accumulators)` over all rows in blocks of at most kBlock for each tile.
template <int kBlock, class Compute>
inline void for_row_blocks(const LinearTask& task, int tile_begin, int tile_end, Compute compute) {
    for (int tile = tile_begin; tile < tile_end; ++tile) {
        const uint8_t* data = task.weight->tile(tile);
        for (int row = 0; row < task.rows; row += kBlock) {
            Vec acc[kBlock];
            const int count = task.rows - row < kBlock ? task.rows - row : kBlock;
            compute(data, row, count, acc);
            for (int r = 0; r < count; ++r) store_tile(task, tile, row + r, acc[r]);
        }
    }
}

template <Format kFormat>
inline void linear_float(const LinearTask& task, int tile_begin, int tile_end) {
    constexpr int kBlock = 4;
    for_row_blocks<kBlock>(task, tile_begin, tile_end, [&](const uint8_t* data, int row, int count, Vec* acc) {
        with_count<kBlock>(count, [&](auto rows) { linear_float_tile<kFormat, rows()>(task, data, row, acc); });
    });
}

// A linear layer whose quantised formats are computed by `QuantisedLinear::run<format>`.
template <class QuantisedLinear>
void linear(const LinearTask& task, int tile_begin, int tile_end) {
    switch (task.weight->format) {
        case Format::kQ4: return QuantisedLinear::template run<Format::kQ4>(task, tile_begin, tile_end);
        case Format::kQ4Min: return QuantisedLinear::template run<Format::kQ4Min>(task, tile_begin, tile_end);
        case Format::kQ8: return QuantisedLinear::template run<Format::kQ8>(task, tile_begin, tile_end);
        case Format::kF32: return linear_float<Format::kF32>(task, tile_begin, tile_end);
        case Format::kF16: return linear_float<Format::kF16>(task, tile_begin, tile_end);
        case Format::kBF16: return linear_float<Format::kBF16>(task, tile_begin, tile_end);
    }
}

}  // namespace
}  // namespace outrider
