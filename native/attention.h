// Attention over the paged KV cache, for a tree of new rows, written once on simd.h's Vec.
//
// A row's sum over positions is split by absolute position alone: chunks of 32 (one block of the cache) inside segments
// of 256. Within a segment the softmax is taken online, chunk after chunk; segments are merged in order. So the bits do
// not depend on which rows are computed together, on how the segments are shared between threads, or on whether a
// row's path lies in the cache in order (a chain) or scattered (a tree).
#pragma once

#include <cstring>
#include <limits>

#include "kernels.h"
#include "simd.h"

namespace outrider {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();  // the score of a position that is not seen

#if defined(__AVX512F__)
constexpr int kQueries = 6;  // (row, query head) pairs per register block: 6 x 64 values fill 24 of 32 registers
#else
constexpr int kQueries = 2;
#endif
static_assert(kQueries <= kQueryBlock);

inline int lesser(int a, int b) { return a < b ? a : b; }
inline int greater(int a, int b) { return a > b ? a : b; }

// The online softmax of one row and query head: maximum score, sum of weights (16 lanes), weighted values.
struct State {
    float* data;

    float& maximum() const { return data[0]; }
    float* lanes() const { return data + 1; }
    float* values() const { return data + 1 + kLanes; }

    void clear(int head_dim) const {
        maximum() = kNever;
        std::memset(lanes(), 0, (kLanes + size_t(head_dim)) * sizeof(float));
    }
};

inline float exp_one(float x) {
    float lanes[kLanes];
    store(lanes, exp(splat(x)));
    return lanes[0];
}

inline void scale_state(State state, float factor, int head_dim) {
    const Vec f = splat(factor);
    store(state.lanes(), load(state.lanes()) * f);
    for (int d = 0; d < head_dim; d += kLanes) store(state.values() + d, load(state.values() + d) * f);
}

// total <- total and next, as one softmax.
inline void merge(State total, State next, int head_dim) {
    const float maximum = total.maximum() > next.maximum() ? total.maximum() : next.maximum();
    const Vec keep = splat(exp_one(total.maximum() - maximum));
    const Vec add = splat(exp_one(next.maximum() - maximum));
    total.maximum() = maximum;
    store(total.lanes(), fma(load(next.lanes()), add, load(total.lanes()) * keep));
    for (int d = 0; d < head_dim; d += kLanes)
        store(total.values() + d, fma(load(next.values() + d), add, load(total.values() + d) * keep));
}

inline void write_out(State state, float* out, int head_dim) {
    const Vec total = splat(sum(load(state.lanes())));
    for (int d = 0; d < head_dim; d += kLanes) store(out + d, load(state.values() + d) / total);
}

// The keys [head_dim][32] and values [32][head_dim] of one chunk and head.
struct Chunk {
    const uint16_t* keys;
    const uint16_t* values;
};

// One chunk of 32 positions for N queries; query j sees the first valid[j] of them (0: none, its state stays).
// Each chunk is a page apart from the last, out of the hardware prefetcher's sight: `next` is fetched meanwhile.
template <int N>
inline void attend_chunk(const float* const* q, const int* valid, State* states, Chunk chunk, Chunk next,
                         int head_dim, float scale, float* weights) {
    const auto [keys, values] = chunk;
    Vec low[N], high[N];
    for (int j = 0; j < N; ++j) low[j] = high[j] = splat(0);
    for (int d = 0; d < head_dim; ++d) {
        prefetch(next.keys + d * kKvBlock);
        prefetch(next.values + d * kKvBlock);
        const Vec k_low = load_half(keys + d * kKvBlock), k_high = load_half(keys + d * kKvBlock + kLanes);
        for (int j = 0; j < N; ++j) {
            const Vec x = splat(q[j][d]);
            low[j] = fma(x, k_low, low[j]);
            high[j] = fma(x, k_high, high[j]);
        }
    }
    int shared = kKvBlock;
    for (int j = 0; j < N; ++j) {
        if (valid[j] < shared) shared = valid[j];
        if (valid[j] == 0) continue;
        const Vec a = keep_first(low[j] * splat(scale), valid[j], kNever);
        const Vec b = keep_first(high[j] * splat(scale), valid[j] - kLanes, kNever);
        const float chunk_maximum = largest(max(a, b));
        if (chunk_maximum > states[j].maximum()) {
            if (states[j].maximum() != kNever)  // otherwise there is nothing to scale yet
                scale_state(states[j], exp_one(states[j].maximum() - chunk_maximum), head_dim);
            states[j].maximum() = chunk_maximum;
        }
        const Vec maximum = splat(states[j].maximum());
        const Vec p_low = exp(a - maximum), p_high = exp(b - maximum);
        store(weights + j * kKvBlock, p_low);
        store(weights + j * kKvBlock + kLanes, p_high);
        store(states[j].lanes(), load(states[j].lanes()) + (p_low + p_high));
    }
    constexpr int kWide = 4;  // 64 values of each query at a time
    for (int d = 0; d < head_dim; d += kWide * kLanes) {
        const int parts = (head_dim - d) / kLanes < kWide ? (head_dim - d) / kLanes : kWide;
        if (parts == kWide) {
            Vec acc[N][kWide];
            for (int j = 0; j < N; ++j)
                for (int i = 0; i < kWide; ++i) acc[j][i] = load(states[j].values() + d + i * kLanes);
            for (int t = 0; t < shared; ++t) {
                Vec v[kWide];
                for (int i = 0; i < kWide; ++i) v[i] = load_half(values + t * head_dim + d + i * kLanes);
                for (int j = 0; j < N; ++j) {
                    const Vec p = splat(weights[j * kKvBlock + t]);
                    for (int i = 0; i < kWide; ++i) acc[j][i] = fma(p, v[i], acc[j][i]);
                }
            }
            for (int j = 0; j < N; ++j)
                for (int i = 0; i < kWide; ++i) store(states[j].values() + d + i * kLanes, acc[j][i]);
        }
        for (int j = 0; j < N; ++j) {
            for (int t = parts == kWide ? shared : 0; t < valid[j]; ++t) {
                const Vec p = splat(weights[j * kKvBlock + t]);
                for (int i = 0; i < parts; ++i) {
                    float* at = states[j].values() + d + i * kLanes;
                    store(at, fma(p, load_half(values + t * head_dim + d + i * kLanes), load(at)));
                }
            }
        }
    }
}

// Keys and values of one chunk, gathered position by position for a row whose path is not stored in order.
inline void gather_chunk(const AttentionTask& task, int row, int chunk, int count, uint16_t* keys, uint16_t* values) {
    const RowMap& map = *task.map;
    const int head_dim = task.kv.head_dim;
    const size_t head = size_t(task.kv_head) * head_dim * kKvBlock;
    const int32_t* table = map.tables + size_t(map.requests[row]) * map.table_stride;
    for (int t = 0; t < count; ++t) {
        const int position = chunk * kKvBlock + t;
        const int slot = position < map.tail_starts[row]
                             ? table[chunk] * kKvBlock + t
                             : map.tail_slots[map.tail_offsets[row] + position - map.tail_starts[row]];
        const size_t block = size_t(slot / kKvBlock) * task.kv.block_size() + head;
        const int offset = slot % kKvBlock;
        for (int d = 0; d < head_dim; ++d) keys[d * kKvBlock + t] = task.kv.keys[block + d * kKvBlock + offset];
        std::memcpy(values + t * head_dim, task.kv.values + block + size_t(offset) * head_dim,
                    head_dim * sizeof(uint16_t));
    }
    for (int d = 0; d < head_dim; ++d)  // stale lanes are masked later, but must not be read uninitialised
        for (int t = count; t < kKvBlock; ++t) keys[d * kKvBlock + t] = 0;
}

// Whether the chunks before `chunk` are all in the blocks of the row's table.
inline bool in_order_until(const RowMap& map, int row, int chunk) {
    return chunk * kKvBlock <= map.tail_starts[row] || map.tail_starts[row] > map.positions[row];
}

template <int N>
inline void attend_queries(const AttentionTask& task, int first) {
    const int head_dim = task.kv.head_dim, per_kv = task.heads / task.kv.heads;
    const size_t state_size = attention_state_size(head_dim);
    const RowMap& map = *task.map;
    float* weights = task.scratch;
    State states[N], totals[N];  // of the segment, and of all up to it; the first segment's are the totals
    const float* q[N];
    int rows[N], heads[N], furthest = 0;
    for (int j = 0; j < N; ++j) {
        totals[j].data = task.scratch + kQueryBlock * kKvBlock + size_t(j) * state_size;
        states[j] = totals[j];
        rows[j] = task.row_begin + (first + j) / per_kv;
        heads[j] = task.kv_head * per_kv + (first + j) % per_kv;
        q[j] = task.q.row(rows[j]) + heads[j] * head_dim;
        if (map.positions[rows[j]] > furthest) furthest = map.positions[rows[j]];
    }
    auto* gathered_keys = reinterpret_cast<uint16_t*>(task.scratch + kQueryBlock * (kKvBlock + 2 * state_size));
    uint16_t* gathered_values = gathered_keys + size_t(head_dim) * kKvBlock;
    const int row = rows[0];
    const int32_t* table = map.tables + size_t(map.requests[row]) * map.table_stride;
    const auto chunk_at = [&](int chunk) {
        const size_t at = size_t(table[chunk]) * task.kv.block_size() + size_t(task.kv_head) * head_dim * kKvBlock;
        return Chunk{task.kv.keys + at, task.kv.values + at};
    };

    for (int segment = task.segment_begin; segment < task.segment_end; ++segment) {
        if (segment * kSegment > furthest) break;
        for (int j = 0; j < N; ++j) states[j].clear(head_dim);
        const int chunk_end = lesser((segment + 1) * (kSegment / kKvBlock), furthest / kKvBlock + 1);
        for (int chunk = segment * (kSegment / kKvBlock); chunk < chunk_end; ++chunk) {
            int valid[N];
            for (int j = 0; j < N; ++j)
                valid[j] = greater(0, lesser(kKvBlock, map.positions[rows[j]] + 1 - chunk * kKvBlock));
            const bool in_order = in_order_until(map, row, chunk + 1);
            if (!in_order) gather_chunk(task, row, chunk, valid[0], gathered_keys, gathered_values);
            const Chunk here = in_order ? chunk_at(chunk) : Chunk{gathered_keys, gathered_values};
            const bool more = chunk + 1 <= furthest / kKvBlock && in_order_until(map, row, chunk + 2);
            attend_chunk<N>(q, valid, states, here, more ? chunk_at(chunk + 1) : here, head_dim, task.scale, weights);
        }
        for (int j = 0; j < N; ++j) {
            if (task.partial) {
                float* to = task.partial + (size_t(rows[j] - task.row_begin) * task.heads + heads[j]) * state_size;
                std::memcpy(to, states[j].data, state_size * sizeof(float));
            } else if (segment == 0) {
                states[j].data += kQueryBlock * state_size;
            } else if (segment * kSegment <= map.positions[rows[j]]) {
                merge(totals[j], states[j], head_dim);
            }
        }
    }
    if (task.partial) return;
    for (int j = 0; j < N; ++j) write_out(totals[j], task.out.row(rows[j]) + heads[j] * head_dim, head_dim);
}

inline void attention(const AttentionTask& task) {
    const int queries = (task.row_end - task.row_begin) * (task.heads / task.kv.heads);
    for (int first = 0; first < queries; first += kQueries)
        with_count<kQueries>(lesser(queries - first, kQueries),
                             [&](auto count) { attend_queries<count()>(task, first); });
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

// Stores the keys and values of new rows in their slots, as half precision.
inline void write_kv(const KvLayer& kv, const RowMap& map, Matrix k, Matrix v, int row_begin, int row_end,
                     int head_begin, int head_end) {
    const int head_dim = kv.head_dim;
    for (int row = row_begin; row < row_end; ++row) {
        const int offset = map.slots[row] % kKvBlock;
        for (int head = head_begin; head < head_end; ++head) {
            const size_t block =
                size_t(map.slots[row] / kKvBlock) * kv.block_size() + size_t(head) * head_dim * kKvBlock;
            for (int d = 0; d < head_dim; d += kLanes) {
                uint16_t half[kLanes];
                store_half(half, load(k.row(row) + head * head_dim + d));
                for (int i = 0; i < kLanes; ++i) kv.keys[block + (d + i) * kKvBlock + offset] = half[i];
                store_half(kv.values + block + size_t(offset) * head_dim + d, load(v.row(row) + head * head_dim + d));
            }
        }
    }
}

}  // namespace
}  // namespace outrider
