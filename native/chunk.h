// Attention's inner part, written once on simd.h's Vec: some queries, one chunk of 32 positions, the online softmax.
//
// Both products, of queries with keys and of weights with values, are sums of 16-bit codes in 32-bit integers, which
// are exact in any order. All else is done to each query by itself, in one order.
#pragma once

#include <cstring>
#include <limits>

#include "kernels.h"
#include "simd.h"

namespace outrider {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();  // the score of a position that is not seen
constexpr float kNothing = 1e-30f;  // a vector no larger counts as zero: the inverse times a largest code must be finite

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

// The online softmax of one row and query head. Scores are in powers of two.
struct State {
    float* data;

    float* lanes() const { return data; }              // 16 partial sums of the weights
    float* values() const { return data + kLanes; }    // [head_dim] weighted
    float& maximum(int head_dim) const { return data[kLanes + head_dim]; }  // largest score

    void clear(int head_dim) const { std::memset(data, 0, (kLanes + size_t(head_dim)) * sizeof(float)); }
    void scale(float factor, int head_dim) const {
        for (int i = 0; i < kLanes + head_dim; i += kLanes) store(data + i, load(data + i) * splat(factor));
    }
};

// Queries that attend to the same chunks: the rows of a run times the query heads of a key head.
struct Queries {
    int count;
    const int32_t* codes;  // [head_dim / 2][count], pairs
    const float* scales;   // [count] of codes, times the attention's own in powers of two; more may be read, not used
    int32_t* seen;         // [count] positions of the chunk
    bool whole;            // whether all of them see all
    float* maxima;         // [count] of the states; as for scales
    float* states;         // [count] of the segment

    State state(int query, int head_dim) const { return {states + size_t(query) * attention_state_size(head_dim)}; }
};

// The products of a row of words (two codes each) and the columns of a matrix, for 16 kWide columns of N rows, are
// handed to done(row, i, sums): step s multiplies words[s * step + j * apart] with row s of the matrix, and fetches row s
// of `next`. That goes to the second cache: fetched into the first, it takes twice as long to read.
template <int N, int kWide, class Done>
__attribute__((noinline)) void multiply(const int32_t* words, int step, int apart, const int32_t* matrix, int width,
                                        int steps, const int32_t* next, Done done) {
    Ints acc[kWide][N];
    for (int i = 0; i < kWide; ++i)
        for (int j = 0; j < N; ++j) acc[i][j] = zeros();
    for (int s = 0; s < steps; ++s, words += step, matrix += width, next += width) {
        Ints m[kWide];
        for (int i = 0; i < kWide; ++i) {
            prefetch_soon(next + i * kLanes);
            m[i] = load_pairs(matrix + i * kLanes);
        }
        for (int j = 0; j < N; ++j) {
            const Ints x = splat_pair(words[j * apart]);
            for (int i = 0; i < kWide; ++i) acc[i][j] = add_products(acc[i][j], m[i], x);
        }
    }
    for (int j = 0; j < N; ++j)
        for (int i = 0; i < kWide; ++i) done(j, i, to_floats(acc[i][j]));
}

// The scales of the first `seen` values of a chunk, as whole numbers of `unit`; what is left is 0.
struct ValueScales {
    int seen = 0;
    float unit = 0;
    Vec low = splat(0), high = splat(0);

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

struct Pair {  // of the lower and upper 16 positions of a chunk
    Vec low, high;
};

// One chunk of 32 positions for the N queries from `first` on. The state of one that sees none stays as it is.
// `next` is fetched meanwhile.
template <int N>
inline void attend_chunk(const Queries& queries, int first, KvBlock chunk, KvBlock next, int head_dim) {
    constexpr int kWords = kKvBlock / 2;
    alignas(64) float scores[N][kKvBlock];  // in units of the query's scale
    const Vec key_scales[2] = {load(chunk.scales), load(chunk.scales + kLanes)};
    const auto keep_score = [&scores, &key_scales](int j, int i, Vec sums) {
        store(scores[j] + i * kLanes, sums * key_scales[i]);
    };
    multiply<N, 2>(queries.codes + first, queries.count, 1, chunk.keys, kKvBlock, head_dim / 2, next.keys, keep_score);
    for (int line = 0; line < 2 * kKvBlock; line += kLanes) prefetch_soon(next.scales + line);

    Vec greater[N];
    const auto seen_only = [&](int j, Vec low, Vec high) {
        if (queries.whole) return Pair{low, high};
        const int seen = queries.seen[first + j];
        return Pair{keep_first(low, seen, kNever), keep_first(high, seen - kLanes, kNever)};
    };
    for (int j = 0; j < N; ++j) {
        const Pair visible = seen_only(j, load(scores[j]), load(scores[j] + kLanes));
        greater[j] = max(visible.low, visible.high);
    }
    // values = values * keep + sums * add, where one of the factors is 1.
    alignas(64) float tops[kLanes], maxima[kLanes], keeps[kLanes], adds[kLanes];
    const Vec top = largest_of_each<N>(greater), before = load(queries.maxima + first);
    const Vec maximum = top * load(queries.scales + first);
    store(tops, top);
    store(maxima, max(before, maximum));
    store(keeps, exp2(min(splat(0), before - maximum)));
    store(adds, exp2(min(splat(0), maximum - before)));

    alignas(64) int32_t weights[N][kWords];
    ValueScales values;
    for (int j = 0; j < N; ++j) {
        const int seen = queries.seen[first + j];
        if (seen == 0) {
            std::memset(weights[j], 0, sizeof weights[j]);
            adds[j] = -0.0f;  // which leaves every number as it is, -0 too
            continue;
        }
        values.take(chunk.scales + kKvBlock, seen);
        const Vec scale = splat(queries.scales[first + j]), largest = splat(tops[j]);
        const auto below = [&](const float* at) { return (load(at) - largest) * scale; };
        const Pair exponents = seen_only(j, below(scores[j]), below(scores[j] + kLanes));
        const Vec low = exp2(exponents.low), high = exp2(exponents.high);
        store_pairs(weights[j], low * values.low, high * values.high);
        const State state = queries.state(first + j, head_dim);
        if (keeps[j] != 1) state.scale(keeps[j], head_dim);
        store(state.lanes(), fma(low + high, splat(adds[j]), load(state.lanes())));
        adds[j] *= values.unit;
        queries.maxima[first + j] = maxima[j];
    }
    const auto columns = [&](int d, auto wide) {
        float* to = queries.state(first, head_dim).values() + d;
        const size_t apart = attention_state_size(head_dim);
        multiply<N, wide>(weights[0], 1, kWords, chunk.values + d, head_dim, kWords, next.values + d,
                          [to, apart, &adds](int j, int i, Vec sums) {
                              float* at = to + size_t(j) * apart + i * kLanes;
                              store(at, fma(sums, splat(adds[j]), load(at)));
                          });
    };
    int d = 0;
    for (; d + 2 * kLanes <= head_dim; d += 2 * kLanes) columns(d, std::integral_constant<int, 2>());
    if (d < head_dim) columns(d, std::integral_constant<int, 1>());
}

// The queries [begin, end) of one chunk, in register blocks.
inline void attend_queries(const Queries& queries, int begin, int end, KvBlock chunk, KvBlock next, int head_dim) {
    for (int first = begin; first < end; first += kQueries)
        with_count<kQueries>(end - first < kQueries ? end - first : kQueries, [&](auto count) {
            attend_chunk<count()>(queries, first, chunk, next, head_dim);
        });
}

}  // namespace
}  // namespace outrider
