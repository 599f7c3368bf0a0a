// Attention over the paged KV cache, for a tree of new rows, written once on simd.h's Vec.
//
// A row's sum over positions is split by absolute position alone: chunks of 32 (one block of the cache) inside segments
// of 256. Within a segment the softmax is taken online, chunk after chunk; segments are merged in order. Inside a chunk
// both products, of queries with keys and of weights with values, are sums of 16-bit codes in 32-bit integers, which are
// exact in any order. So the bits do not depend on which rows are computed together, on how the segments are shared
// between threads, or on whether a row's path lies in the cache in order (a chain) or scattered (a tree).
#pragma once

#include <cstring>
#include <limits>

#include "elementwise.h"
#include "kernels.h"
#include "simd.h"

namespace outrider {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();  // the score of a position that is not seen
constexpr float kNothing = 1e-30f;  // a vector no larger counts as zero: its inverse times a largest code must be finite

// A sum of 32 products of a weight's code and a value's fits in 32 bits; one of head_dim products of a query's and a
// key's does if neither is more than `largest_code`.
constexpr float kLargestWeight = 16383, kLargestValue = 4095;
inline float largest_code(int head_dim) { return float(int(__builtin_sqrt(2147483647.0 / head_dim))); }

// (row, query head) pairs per register block: two integer sums each, and the keys or values that they share.
#if defined(__AVX512F__)
constexpr int kQueries = 12;
#else
constexpr int kQueries = 2;
#endif

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

// Codes of a vector, at most `largest` in magnitude, 16 at a time to `put(first index, codes)`; returns their scale.
// A NaN or infinity makes the scale NaN or infinite.
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
    return magnitude / largest;
}

inline void set_pair(int32_t& word, int place, int16_t code) {
    std::memcpy(reinterpret_cast<char*>(&word) + 2 * place, &code, sizeof code);
}

// The rows of a task times the query heads of its key head, as the kernel reads them.
struct Queries {
    int count;
    int32_t* codes;  // [head_dim / 2][count], pairs
    float* scales;   // [count], of codes, times the attention's own
    int32_t* seen;   // [count], how many positions of the chunk
    float* states;   // [count] states of the segment
};

// Keys, values and scales of one block and head, as in KvLayer.
struct Chunk {
    const int32_t* keys;
    const int32_t* values;
    const float* scales;
};

inline Chunk chunk_at(const KvLayer& kv, int block, int head) {
    const KvLayer at = kv.at(block, head);
    return {at.keys, at.values, at.scales};
}

// sums[j] = the products of a row of words (two codes each) and the columns of a matrix, for 16 kWide columns: step s
// multiplies words[s * step + j * kApart] with row s of the matrix, and fetches row s of `next`. Each chunk is a page apart
// from the last, out of the hardware prefetcher's sight, and fetching all at once would leave the memory idle afterwards.
template <int N, int kWide, int kApart>
__attribute__((noinline)) void multiply(const int32_t* words, int step, const int32_t* matrix, int width, int steps,
                                        const int32_t* next, float (*sums)[kWide * kLanes]) {
    Ints acc[kWide][N];
    for (int i = 0; i < kWide; ++i)
        for (int j = 0; j < N; ++j) acc[i][j] = zeros();
    for (int s = 0; s < steps; ++s, words += step, matrix += width, next += width) {
        Ints m[kWide];
        for (int i = 0; i < kWide; ++i) {
            prefetch(next + i * kLanes);
            m[i] = load_pairs(matrix + i * kLanes);
        }
        for (int j = 0; j < N; ++j) {
            int32_t pair;
            std::memcpy(&pair, words + j * kApart, sizeof pair);  // which may have been written as two codes
            const Ints x = splat_pair(pair);
            for (int i = 0; i < kWide; ++i) acc[i][j] = add_products(acc[i][j], m[i], x);
        }
    }
    for (int j = 0; j < N; ++j)
        for (int i = 0; i < kWide; ++i) store(sums[j] + i * kLanes, to_floats(acc[i][j]));
}

// The scales of the first `seen` values of a chunk, as whole numbers of `unit`; what is left is 0.
struct ValueScales {
    int seen = 0;
    float unit;
    Vec low, high;

    void take(const float* scales, int count) {
        if (seen == count) return;
        seen = count;
        const Vec a = keep_first(load(scales), seen, 0), b = keep_first(load(scales + kLanes), seen - kLanes, 0);
        const float greatest = largest_magnitude(max_magnitude(a, b));
        const Vec inverse = splat(greatest > kNothing ? kLargestWeight / greatest : 0.0f);
        unit = greatest / kLargestWeight;
        low = a * inverse;
        high = b * inverse;
    }
};

// How a chunk is added to a state: values = values * keep + sums * add.
struct Update {
    float keep, add;
};

// From a query's products with the keys of a chunk to the codes of its weights.
inline Update weigh(State state, const float* dots, float query_scale, const float* key_scales,
                    const ValueScales& values, int16_t* weights) {
    const Vec scale = splat(query_scale);
    const Vec a = keep_first(load(dots) * (load(key_scales) * scale), values.seen, kNever);
    const Vec b = keep_first(load(dots + kLanes) * (load(key_scales + kLanes) * scale), values.seen - kLanes, kNever);
    const float maximum = largest(max(a, b)), before = state.maximum();
    const Vec p_low = exp(a - splat(maximum)), p_high = exp(b - splat(maximum));
    store_shorts(weights, p_low * values.low);
    store_shorts(weights + kLanes, p_high * values.high);

    const bool rises = maximum > before;
    const float factor = exp_one(rises ? before - maximum : maximum - before);
    const Update update = rises ? Update{factor, 1} : Update{1, factor};
    state.maximum() = rises ? maximum : before;
    store(state.lanes(), fma(load(state.lanes()), splat(update.keep), (p_low + p_high) * splat(update.add)));
    return {update.keep, update.add * values.unit};
}

// One chunk of 32 positions for the N queries from `first` on. The state of one that sees none stays as it is. `next` is
// fetched meanwhile.
template <int N>
inline void attend_chunk(const Queries& queries, int first, Chunk chunk, Chunk next, int head_dim) {
    constexpr int kWords = kKvBlock / 2;
    const size_t state_size = attention_state_size(head_dim);
    const auto state_of = [&](int j) { return State{queries.states + size_t(first + j) * state_size}; };
    float dots[N][kKvBlock];
    multiply<N, 2, 1>(queries.codes + first, queries.count, chunk.keys, kKvBlock, head_dim / 2, next.keys, dots);
    for (int line = 0; line < 2 * kKvBlock; line += kLanes) prefetch(next.scales + line);

    alignas(64) int16_t weights[N][kKvBlock] = {};
    Update updates[N];
    ValueScales values;
    for (int j = 0; j < N; ++j) {
        updates[j] = {1, 0};
        if (queries.seen[first + j] == 0) continue;
        values.take(chunk.scales + kKvBlock, queries.seen[first + j]);
        updates[j] = weigh(state_of(j), dots[j], queries.scales[first + j], chunk.scales, values, weights[j]);
    }
    const auto columns = [&](int d, auto wide) {
        float sums[N][wide * kLanes];
        multiply<N, wide, kWords>(reinterpret_cast<const int32_t*>(weights), 1, chunk.values + d, head_dim, kWords,
                                  next.values + d, sums);
        for (int j = 0; j < N; ++j) {
            for (int i = 0; i < wide * kLanes; i += kLanes) {
                float* at = state_of(j).values() + d + i;
                store(at, fma(load(sums[j] + i), splat(updates[j].add), load(at) * splat(updates[j].keep)));
            }
        }
    };
    int d = 0;
    for (; d + 2 * kLanes <= head_dim; d += 2 * kLanes) columns(d, std::integral_constant<int, 2>());
    if (d < head_dim) columns(d, std::integral_constant<int, 1>());
}

// Keys, values and scales of one chunk, gathered position by position for a row whose path is not stored in order.
inline void gather_chunk(const AttentionTask& task, int row, int chunk, int count, const KvLayer& to) {
    const RowMap& map = *task.map;
    const int head_dim = to.head_dim;
    const int32_t* table = map.tables + size_t(map.requests[row]) * map.table_stride;
    if (count < kKvBlock) {  // the other places are masked later, but must not be read uninitialised
        std::memset(to.keys, 0, size_t(head_dim) * (kKvBlock / 2) * sizeof *to.keys);
        std::memset(to.values, 0, size_t(head_dim) * (kKvBlock / 2) * sizeof *to.values);
        std::memset(to.scales, 0, 2 * kKvBlock * sizeof *to.scales);
    }
    for (int t = 0; t < count; ++t) {
        const int position = chunk * kKvBlock + t;
        const int slot = position < map.tail_starts[row]
                             ? table[chunk] * kKvBlock + t
                             : map.tail_slots[map.tail_offsets[row] + position - map.tail_starts[row]];
        const KvLayer from = task.kv.at(slot / kKvBlock, task.kv_head);
        const int place = slot % kKvBlock;
        for (int d = 0; d < head_dim / 2; ++d) to.keys[d * kKvBlock + t] = from.keys[d * kKvBlock + place];
        for (int d = 0; d < head_dim; ++d)
            set_pair(to.values[t / 2 * head_dim + d], t % 2,
                     int16_t(from.values[place / 2 * head_dim + d] >> place % 2 * 16));
        for (int i = 0; i < 2 * kKvBlock; i += kKvBlock) to.scales[i + t] = from.scales[i + place];
    }
}

// The queries [begin, end) of one chunk, in register blocks.
inline void attend_queries(const Queries& queries, int begin, int end, Chunk chunk, Chunk next, int head_dim) {
    for (int first = begin; first < end; first += kQueries)
        with_count<kQueries>(lesser(end - first, kQueries), [&](auto count) {
            attend_chunk<count()>(queries, first, chunk, next, head_dim);
        });
}

// How many chunks from the first on are read from the same places by all rows of the task.
inline int shared_chunks(const AttentionTask& task, int chunks) {
    const RowMap& map = *task.map;
    for (int row = task.row_begin; row < task.row_end; ++row)
        if (map.tail_starts[row] <= map.positions[row]) chunks = lesser(chunks, map.tail_starts[row] / kKvBlock);
    return chunks;
}

inline void attention(const AttentionTask& task) {
    const RowMap& map = *task.map;
    const KvLayer& kv = task.kv;
    const int head_dim = kv.head_dim, per_kv = task.heads / kv.heads, rows = task.row_end - task.row_begin;
    const int count = rows * per_kv;
    const size_t state_size = attention_state_size(head_dim);
    float* totals = task.scratch;  // the first segment's states; those of the others are added to them
    float* others = totals + size_t(count) * state_size;
    float* scales = others + size_t(count) * state_size;
    auto* words = reinterpret_cast<int32_t*>(scales + count);
    Queries queries = {count, words + count, scales, words, totals};
    KvLayer gathered = {queries.codes + size_t(count) * (head_dim / 2), nullptr, nullptr, 1, head_dim};
    gathered.values = gathered.keys + head_dim * (kKvBlock / 2);
    gathered.scales = reinterpret_cast<float*>(gathered.values + head_dim * (kKvBlock / 2));
    const auto state_at = [&](float* states, int j) { return State{states + size_t(j) * state_size}; };

    const float largest = largest_code(head_dim);
    int furthest = 0;
    for (int j = 0; j < count; ++j) {
        const int row = task.row_begin + j / per_kv;
        const float* q = task.q.row(row) + (task.kv_head * per_kv + j % per_kv) * head_dim;
        queries.scales[j] = task.scale * encode(q, head_dim, largest, [&](int at, const int16_t* codes) {
            for (int i = 0; i < kLanes; i += 2)
                std::memcpy(queries.codes + (at + i) / 2 * count + j, codes + i, sizeof *queries.codes);
        });
        furthest = greater(furthest, map.positions[row]);
    }
    const int chunks = furthest / kKvBlock + 1, shared = shared_chunks(task, chunks);
    const int32_t* table = map.tables + size_t(map.requests[task.row_begin]) * map.table_stride;

    for (int segment = task.segment_begin; segment < task.segment_end && segment * kSegment <= furthest; ++segment) {
        for (int j = 0; j < count; ++j) state_at(queries.states, j).clear(head_dim);
        const int end = lesser((segment + 1) * (kSegment / kKvBlock), chunks);
        for (int chunk = segment * (kSegment / kKvBlock); chunk < end; ++chunk) {
            for (int j = 0; j < count; ++j) {
                const int left = map.positions[task.row_begin + j / per_kv] + 1 - chunk * kKvBlock;
                queries.seen[j] = greater(0, lesser(kKvBlock, left));
            }
            if (chunk < shared) {
                const Chunk here = chunk_at(kv, table[chunk], task.kv_head);
                const Chunk next = chunk + 1 < shared ? chunk_at(kv, table[chunk + 1], task.kv_head) : here;
                attend_queries(queries, 0, count, here, next, head_dim);
                continue;
            }
            const Chunk here = chunk_at(gathered, 0, 0);
            for (int j = 0; j < count; j += per_kv) {
                if (queries.seen[j] == 0) continue;
                gather_chunk(task, task.row_begin + j / per_kv, chunk, queries.seen[j], gathered);
                attend_queries(queries, j, j + per_kv, here, here, head_dim);
            }
        }
        for (int j = 0; j < count; ++j) {
            const int row = j / per_kv, head = task.kv_head * per_kv + j % per_kv;
            if (task.partial)
                std::memcpy(task.partial + (size_t(row) * task.heads + head) * state_size,
                            state_at(queries.states, j).data, state_size * sizeof(float));
            else if (segment > 0 && segment * kSegment <= map.positions[task.row_begin + row])
                merge(state_at(totals, j), state_at(others, j), head_dim);
        }
        if (!task.partial) queries.states = others;
    }
    if (task.partial) return;
    for (int j = 0; j < count; ++j)
        write_out(state_at(totals, j),
                  task.out.row(task.row_begin + j / per_kv) + (task.kv_head * per_kv + j % per_kv) * head_dim, head_dim);
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
    const int head_dim = kv.head_dim;
    const float largest = largest_code(head_dim);
    for (int row = row_begin; row < row_end; ++row) {
        const int place = map.slots[row] % kKvBlock;
        for (int head = head_begin; head < head_end; ++head) {
            const KvLayer to = kv.at(map.slots[row] / kKvBlock, head);
            to.scales[place] =
                encode(k.row(row) + head * head_dim, head_dim, largest, [&](int d, const int16_t* codes) {
                    for (int i = 0; i < kLanes; i += 2)
                        std::memcpy(to.keys + (d + i) / 2 * kKvBlock + place, codes + i, sizeof *to.keys);
                });
            to.scales[kKvBlock + place] =
                encode(v.row(row) + head * head_dim, head_dim, kLargestValue, [&](int d, const int16_t* codes) {
                    for (int i = 0; i < kLanes; ++i)
                        set_pair(to.values[place / 2 * head_dim + d + i], place % 2, codes[i]);
                });
        }
    }
}

}  // namespace
}  // namespace outrider
