// Passes over a row: its largest values, its weights, and sums of these.
#include <cmath>
#include <cstring>

#include "sampling.h"

namespace outrider::sampling {
namespace {

// Many lanes at a time; wider than some processors' registers, so never passed to a function.
using Floats8 = float __attribute__((vector_size(32)));
using Ints8 = int32_t __attribute__((vector_size(32)));
using Floats16 = float __attribute__((vector_size(64)));
using Ints16 = int32_t __attribute__((vector_size(64)));
using Doubles8 = double __attribute__((vector_size(64)));

#define LARGER(x, y) ((x) > (y) ? (x) : (y))

// Of the whole blocks of a row. Returns whether all values are numbers; if not, the maxima are not to be used.
PER_PROCESSOR bool block_maxima(const float* values, size_t n, float* maxima) {
    Ints8 nan = {};
    for (size_t start = 0; start + kBlock <= n; start += kBlock) {
        Floats8 next[kBlock / 8];
        std::memcpy(next, values + start, sizeof next);
        for (const Floats8& each : next) nan |= each != each;
        const Floats8 eight = LARGER(LARGER(next[0], next[1]), LARGER(next[2], next[3]));
        const Floats8 four = LARGER(eight, __builtin_shuffle(eight, Ints8{4, 5, 6, 7, 0, 1, 2, 3}));
        const Floats8 two = LARGER(four, __builtin_shuffle(four, Ints8{2, 3, 0, 1, 6, 7, 4, 5}));
        *maxima++ = LARGER(two[0], two[1]);
    }
    bool numbers = true;
    for (int lane = 0; lane < 8; ++lane) numbers &= !nan[lane];
    return numbers;
}

float largest(const float* values, size_t n) { return values[first_largest(values, n)]; }

}  // namespace

PER_PROCESSOR void weigh(const float* logits, size_t n, float peak, float scale, float* weights) {
    constexpr float kLowest = -87.3f;      // below, weights are exactly 0
    constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
    float last[16] = {}, last_weights[16];
    const size_t rest = n % 16;
    std::copy_n(logits + n - rest, rest, last);
    for (size_t i = 0; i < n; i += 16) {
        Floats16 x;
        std::memcpy(&x, i + 16 <= n ? logits + i : last, sizeof x);
        x = (x - peak) * scale;
        const Ints16 possible = x >= kLowest;
        x = possible ? x : Floats16{} + kLowest;
        const Floats16 whole = (x * 1.44269504f + kRound) - kRound;
        const Floats16 r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
        Floats16 p = r * (1.0f / 720) + 1.0f / 120;  // Taylor's series of e^r
        p = p * r + 1.0f / 24;
        p = p * r + 1.0f / 6;
        p = p * r + 0.5f;
        p = p * r + 1.0f;
        p = p * r + 1.0f;
        const Floats16 power = (Floats16)((__builtin_convertvector(whole, Ints16) + 127) << 23);
        const Floats16 weight = (Floats16)((Ints16)(p * power) & possible);
        std::memcpy(i + 16 <= n ? weights + i : last_weights, &weight, sizeof weight);
    }
    std::copy_n(last_weights, rest, weights + n - rest);
}

PER_PROCESSOR size_t first_largest(const float* values, size_t n) {
    Floats8 best;
    Ints8 nan = {};
    for (int lane = 0; lane < 8; ++lane) best[lane] = -kInfinity;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        Floats8 next;
        std::memcpy(&next, values + i, sizeof next);
        best = LARGER(next, best);
        nan |= next != next;
    }
    float largest = -kInfinity;
    bool all_numbers = true;
    for (int lane = 0; lane < 8; ++lane) largest = LARGER(best[lane], largest), all_numbers &= !nan[lane];
    for (; i < n; ++i) largest = LARGER(values[i], largest), all_numbers &= values[i] == values[i];
    size_t place = 0;
    while (place + 1 < n && (all_numbers ? values[place] != largest : values[place] == values[place])) ++place;
    return place;
}

std::vector<float> maxima_of(const float* values, size_t n) {
    std::vector<float> maxima(blocks_of(n));
    const size_t whole = n / kBlock;
    if (!block_maxima(values, n, maxima.data()))
        for (size_t block = 0; block < whole; ++block) maxima[block] = largest(values + block * kBlock, kBlock);
    if (whole < maxima.size()) maxima[whole] = largest(values + whole * kBlock, n % kBlock);
    return maxima;
}

PER_PROCESSOR Mass mass_from(float floor, const float* values, size_t n) {
    Doubles8 even = {}, odd = {};
    Ints8 kept = {};
    Mass mass{0, 0};
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        Floats8 first, second;
        std::memcpy(&first, values + i, sizeof first);
        std::memcpy(&second, values + i + 8, sizeof second);
        const Ints8 keep_first = first >= floor, keep_second = second >= floor;  // -1 where true
        even += __builtin_convertvector(keep_first ? first : Floats8{}, Doubles8);
        odd += __builtin_convertvector(keep_second ? second : Floats8{}, Doubles8);
        kept -= keep_first + keep_second;
    }
    for (; i < n; ++i)
        if (values[i] >= floor) mass.sum += values[i], ++mass.count;
    even += odd;
    for (int lane = 0; lane < 8; ++lane) mass.sum += even[lane], mass.count += size_t(kept[lane]);
    return mass;
}

Likeliest likeliest(const float* logits, size_t n) {
    const size_t place = first_largest(logits, n);
    if (!std::isfinite(logits[place])) return {place, 0};
    double sum = 0;
    for (size_t start = 0; start < n; start += kStretch) {
        float weights[kStretch];
        const size_t size = std::min(kStretch, n - start);
        weigh(logits + start, size, logits[place], 1, weights);
        sum += mass_from(0, weights, size).sum;
    }
    return {place, 1 / sum};
}

PER_PROCESSOR Sums sums_of(const float* values, size_t n, float floor) {
    Floats16 all = {}, large = {};
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        Floats16 next;
        std::memcpy(&next, values + i, sizeof next);
        all += next;
        large += next >= floor ? next : Floats16{};
    }
    Sums sums{0, 0};
    for (; i < n; ++i) sums.all += values[i], sums.large += values[i] >= floor ? values[i] : 0;
    for (int lane = 0; lane < 16; ++lane) sums.all += all[lane], sums.large += large[lane];
    return sums;
}

}  // namespace outrider::sampling
