// Attention over the paged KV cache, for a tree of new rows, written once on simd.h's Vec.
//
// A row's sum over positions is split by absolute position alone: chunks of 32 (one block of the cache) inside segments
// of 256. Within a segment the softmax is taken online, chunk after chunk (chunk.h); segments are merged in order. So
// the bits do not depend on which rows are computed together, on how the segments are shared between threads, or on
// whether a row's path lies in the cache in order (a chain) or scattered (a tree).
#pragma once

#include "chunk.h"
#include "elementwise.h"

namespace outrider {
namespace {

inline int lesser(int a, int b) { return a < b ? a : b; }
inline int greater(int a, int b) { return a > b ? a : b; }

// total <- total and next, as one softmax.
inline void merge(State total, State next, int head_dim) {
    const Vec before = splat(total.maximum(head_dim)), maximum = splat(next.maximum(head_dim));
    const Vec keep = exp2(min(splat(0), before - maximum)), add = exp2(min(splat(0), maximum - before));
    for (int i = 0; i < kLanes + head_dim; i += kLanes)
        store(total.data + i, fma(load(next.data + i), add, load(total.data + i) * keep));
    if (next.maximum(head_dim) > total.maximum(head_dim)) total.maximum(head_dim) = next.maximum(head_dim);
}

inline void write_out(State state, float* out, int head_dim) {
    const Vec total = splat(sum(load(state.lanes())));
    for (int d = 0; d < head_dim; d += kLanes) store(out + d, load(state.values() + d) / total);
}

// Codes of a vector, at most `largest` in magnitude, 16 at a time to `put(first index, codes)`; returns their scale.
// A NaN or infinity makes the scale NaN or infinite; the NaN is one without a payload, as exp2 wants it.
template <class Put>
inline float encode(const float* x, int count, float largest, Put put) {
    Vec greatest = splat(0);
    for (int i = 0; i < count; i += kLanes) greatest = max_magnitude(greatest, load(x + i));
    const float magnitude = largest_magnitude(greatest);
    const Vec inverse = splat(magnitude > kNothing ? largest / magnitude : 0.0f);
    for (int i = 0; i < count; i += kLanes) {
        int16_t codes[kLanes];
        store_shorts(codes, load(x + i) * inverse);
        put(i, codes);
    }
    return magnitude == magnitude ? magnitude / largest : std::numeric_limits<float>::quiet_NaN();
}

inline void set_pair(int32_t& word, int place, int16_t code) {
    std::memcpy(reinterpret_cast<char*>(&word) + 2 * place, &code, sizeof code);
}

// A query's codes, in pairs `stride` words apart; returns their scale, the attention's own included, in powers of two.
inline float encode_query(const float* q, int head_dim, float scale, int32_t* codes, int stride) {
    constexpr float kLog2E = 1.44269504f;
    return scale * kLog2E * encode(q, head_dim, largest_code(head_dim), [&](int at, const int16_t* pairs) {
        for (int i = 0; i < kLanes; i += 2)
            std::memcpy(codes + size_t(at + i) / 2 * stride, pairs + i, sizeof *codes);
    });
}

inline KvBlock block_at(const KvLayer& kv, int block, int head) { return {kv.at(block, head), kv.head_dim}; }

// Keys, values and scales of one chunk, gathered position by position for a row whose path is not stored in order.
inline void gather_chunk(const AttentionTask& task, int row, int chunk, int count, KvBlock to) {
    constexpr int kHalf = kKvBlock / 2;
    const RowMap& map = *task.map;
    const int head_dim = task.kv.head_dim;
    const int32_t* table = map.tables + size_t(map.requests[row]) * map.table_stride;
    if (count < kKvBlock)  // the other places are masked later, but must not be read uninitialised
        std::memset(to.keys, 0, KvLayer::block_words(head_dim) * sizeof *to.keys);
    for (int t = 0; t < count; ++t) {
        const int position = chunk * kKvBlock + t;
        const int slot = position < map.tail_starts[row]
                             ? table[chunk] * kKvBlock + t
                             : map.tail_slots[map.tail_offsets[row] + position - map.tail_starts[row]];
        const KvBlock from = block_at(task.kv, slot / kKvBlock, task.kv_head);
        const int place = slot % kKvBlock;
        for (int d = 0; d < head_dim / 2; ++d) to.keys[d * kKvBlock + t] = from.keys[d * kKvBlock + place];
        for (int d = 0; d < head_dim; ++d)
            set_pair(to.values[t % kHalf * head_dim + d], t / kHalf,
                     int16_t(from.values[place % kHalf * head_dim + d] >> place / kHalf * 16));
        for (int i = 0; i < 2 * kKvBlock; i += kKvBlock) to.scales[i + t] = from.scales[i + place];
    }
}

// How many chunks from the first on are read from the same places by all rows of the task.
inline int shared_chunks(const AttentionTask& task, int chunks) {
    const RowMap& map = *task.map;
    for (int row = task.row_begin; row < task.row_end; ++row)
        if (map.tail_starts[row] <= map.positions[row]) chunks = lesser(chunks, map.tail_starts[row] / kKvBlock);
    return chunks;
}

inline void attention(const AttentionTask& task) {
    constexpr int kChunks = kSegment / kKvBlock;
    const RowMap& map = *task.map;
    const KvLayer& kv = task.kv;
    const int head_dim = kv.head_dim, per_kv = task.heads / kv.heads, rows = task.row_end - task.row_begin;
    const int count = rows * per_kv, padded = padded_lanes(count);
    const size_t state_size = attention_state_size(head_dim);
    float* totals = task.scratch;  // the first segment's states; those of the others are added to them
    float* others = totals + size_t(count) * state_size;
    float* maxima = others + size_t(count) * state_size;
    auto* seen = reinterpret_cast<int32_t*>(maxima + padded);
    Queries queries = {count, task.query_codes, task.query_scales, seen, true, maxima, totals};
    const KvBlock gathered(seen + padded, head_dim);

    int furthest = 0, nearest = map.positions[task.row_begin];
    for (int row = task.row_begin; row < task.row_end; ++row) {
        furthest = greater(furthest, map.positions[row]);
        nearest = lesser(nearest, map.positions[row]);
    }
    for (int j = count; j < padded; ++j) maxima[j] = 0;
    const int chunks = furthest / kKvBlock + 1, shared = shared_chunks(task, chunks);
    const int stop = lesser(task.segment_end * kChunks, shared);
    const int32_t* table = map.tables + size_t(map.requests[task.row_begin]) * map.table_stride;

    for (int segment = task.segment_begin; segment < task.segment_end && segment * kSegment <= furthest; ++segment) {
        for (int j = 0; j < count; ++j) {
            queries.state(j, head_dim).clear(head_dim);
            maxima[j] = kNever;
        }
        const int end = lesser((segment + 1) * kChunks, chunks);
        for (int chunk = segment * kChunks; chunk < end; ++chunk) {
            queries.whole = (chunk + 1) * kKvBlock <= nearest + 1;
            for (int j = 0; j < count; ++j) {
                const int left = map.positions[task.row_begin + j / per_kv] + 1 - chunk * kKvBlock;
                seen[j] = greater(0, lesser(kKvBlock, left));
            }
            if (chunk < shared) {
                const KvBlock here = block_at(kv, table[chunk], task.kv_head);
                const KvBlock next = chunk + 1 < stop ? block_at(kv, table[chunk + 1], task.kv_head)
                                                      : block_at(kv, task.next_block, task.next_head);
                attend_queries(queries, 0, count, here, next, head_dim);
                continue;
            }
            for (int j = 0; j < count; j += per_kv) {
                if (seen[j] == 0) continue;
                gather_chunk(task, task.row_begin + j / per_kv, chunk, seen[j], gathered);
                attend_queries(queries, j, j + per_kv, gathered, gathered, head_dim);
            }
        }
        for (int j = 0; j < count; ++j) {
            const int row = j / per_kv, head = task.kv_head * per_kv + j % per_kv;
            const State state = queries.state(j, head_dim);
            state.maximum(head_dim) = maxima[j];
            if (task.partial)
                std::memcpy(task.partial + (size_t(row) * task.heads + head) * state_size, state.data,
                            state_size * sizeof(float));
            else if (segment > 0 && segment * kSegment <= map.positions[task.row_begin + row])
                merge({totals + size_t(j) * state_size}, state, head_dim);
        }
        if (!task.partial) queries.states = others;
    }
    if (task.partial) return;
    for (int j = 0; j < count; ++j) {
        float* out = task.out.row(task.row_begin + j / per_kv) + (task.kv_head * per_kv + j % per_kv) * head_dim;
        write_out({totals + size_t(j) * state_size}, out, head_dim);
    }
}

// Merges the `segments` states of one row and query head, which lie `heads * rows` states apart, and writes the output.
inline void merge_attention(const AttentionTask& task, float* states, int segments, int row, int query_head) {
    const int head_dim = task.kv.head_dim;
    const size_t state_size = attention_state_size(head_dim);
    const size_t stride = size_t(task.row_end - task.row_begin) * task.heads * state_size;
    const State total{states + (size_t(row - task.row_begin) * task.heads + query_head) * state_size};
    for (int s = 1; s < segments; ++s) merge(total, State{total.data + s * stride}, head_dim);
    write_out(total, task.out.row(row) + query_head * head_dim, head_dim);
}

// Stores the keys and values of new rows in their slots, as codes.
inline void write_kv(const KvLayer& kv, const RowMap& map, Matrix k, Matrix v, int row_begin, int row_end,
                     int head_begin, int head_end) {
    constexpr int kHalf = kKvBlock / 2;
    const int head_dim = kv.head_dim;
    const float largest = largest_code(head_dim);
    for (int row = row_begin; row < row_end; ++row) {
        const int place = map.slots[row] % kKvBlock;
        for (int head = head_begin; head < head_end; ++head) {
            const KvBlock to = block_at(kv, map.slots[row] / kKvBlock, head);
            to.scales[place] =
                encode(k.row(row) + head * head_dim, head_dim, largest, [&](int d, const int16_t* codes) {
                    for (int i = 0; i < kLanes; i += 2)
                        std::memcpy(to.keys + (d + i) / 2 * kKvBlock + place, codes + i, sizeof *to.keys);
                });
            to.scales[kKvBlock + place] =
                encode(v.row(row) + head * head_dim, head_dim, kLargestValue, [&](int d, const int16_t* codes) {
                    for (int i = 0; i < kLanes; ++i)
                        set_pair(to.values[place % kHalf * head_dim + d + i], place / kHalf, codes[i]);
                });
        }
    }
}

}  // namespace
}  // namespace outrider
