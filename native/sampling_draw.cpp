// From a law to a token: the inverse of the cumulative distribution, and the race of coupled draws.
#include <cmath>
#include <cstring>
#include <numeric>

#include "sampling.h"

namespace outrider::sampling {
namespace {

// Four lanes at a time; wider than some processors' registers, so never passed to a function.
using Floats4 = float __attribute__((vector_size(16)));
using Doubles4 = double __attribute__((vector_size(32)));

PER_PROCESSOR double sum_of(const float* values, size_t n) {
    Doubles4 even = {}, odd = {};
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        Floats4 halves[2];
        std::memcpy(halves, values + i, sizeof halves);
        even += __builtin_convertvector(halves[0], Doubles4);
        odd += __builtin_convertvector(halves[1], Doubles4);
    }
    double sum = 0;
    for (; i < n; ++i) sum += values[i];
    even += odd;
    for (int lane = 0; lane < 4; ++lane) sum += even[lane];
    return sum;
}

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;

// The finaliser of SplitMix64 (Steele et al. 2014).
inline uint64_t mixed(uint64_t state) {
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9u;
    state = (state ^ (state >> 27)) * 0x94D049BB133111EBu;
    return state ^ (state >> 31);
}

// 64 bits for a number, as in `Noise.exponentials`.
inline uint64_t bits(uint64_t key, uint64_t number) { return mixed(number * kGolden + key); }

// In (0, 1).
inline double uniform(uint64_t bits) { return (double(bits >> 12) + 0.5) * 0x1p-52; }

constexpr double kRoom = 1 + 1e-5;  // for rounding

// A race between tokens, block by block of ids; `Noise.exponentials` says how their noise is made.
struct Race {
    Keys keys;
    double best = HUGE_VAL;
    int32_t winner = 0;

    // Tokens of one block, ascending, with their weights.
    void enter(const int32_t* ids, const float* weights, size_t n) {
        const uint64_t of_block = bits(keys.block, uint64_t(ids[0]) / kBlock);
        const double first = -std::log(uniform(of_block)) / kBlock;
        for (size_t i = 0; i < n; ++i) {
            double arrival = first;
            if (uint64_t(ids[i]) % kBlock != of_block % kBlock) {
                const double u = uniform(bits(keys.id, uint64_t(ids[i])));
                if (first + (1 - u) > best * kRoom * double(weights[i])) continue;  // -log(u) >= 1 - u
                arrival += -std::log(u);
            }
            arrival /= weights[i];
            if (arrival < best || (arrival == best && ids[i] < winner)) best = arrival, winner = ids[i];
        }
    }
};

// No token of a block arrives before its time, if its weights are at most `heaviest`: the first E of a block is
// -log(u) / 32 >= (1 - u) / 32, so most blocks need no logarithm. `kRoom` is there since the weights of `weigh` may fall
// by a last digit where logits rise.
PER_PROCESSOR void earliest(uint64_t key, const uint64_t* blocks, const float* heaviest, size_t n, double* times) {
    for (size_t i = 0; i < n; ++i)
        times[i] = (1 - uniform(bits(key, blocks[i]))) / (double(heaviest[i]) * (kBlock * kRoom));
}

// The winner of a race between parts of the vocabulary, each of one block of ids; `enter` lets a part take part. Those
// that come too late for any of their tokens to win do not.
template <class Enter>
int32_t winner(const std::vector<uint64_t>& blocks, const std::vector<float>& heaviest, Keys keys, Enter enter) {
    std::vector<double> times(blocks.size());
    earliest(keys.block, blocks.data(), heaviest.data(), blocks.size(), times.data());
    const size_t likely = size_t(std::min_element(times.begin(), times.end()) - times.begin());
    Race race{keys};
    enter(likely, race);  // who may be first leaves few others a chance
    for (size_t part = 0; part < times.size(); ++part)
        if (times[part] <= race.best && part != likely) enter(part, race);
    return race.winner;
}

}  // namespace

uint64_t key(std::initializer_list<uint64_t> parts) {
    uint64_t state = 0;
    for (const uint64_t part : parts) state = mixed((state ^ part) + kGolden);
    return state;
}

size_t pick(const float* weights, size_t n, double total, double uniform) {
    double left = uniform * total;
    size_t start = 0;
    for (; start + kStretch < n; start += kStretch) {
        const double sum = sum_of(weights + start, kStretch);
        if (left < sum) break;
        left -= sum;
    }
    const size_t last = std::min(n, start + kStretch) - 1;  // rounding may leave something in the end
    while (start < last && left >= weights[start]) left -= weights[start++];
    return start;
}

int32_t race(const int32_t* ids, const float* weights, size_t n, Keys keys) {
    const bool whole = size_t(ids[n - 1]) + 1 == n;  // vocabulary
    const size_t most = whole ? blocks_of(n) : std::min(n, size_t(ids[n - 1]) / kBlock + 1);
    std::vector<size_t> begins(most + 1);  // of the tokens of each block of ids
    std::vector<uint64_t> blocks(most);
    std::vector<float> heaviest(most);
    size_t parts = 0;
    if (whole) {
        heaviest = maxima_of(weights, n);
        for (; parts < most; ++parts) begins[parts] = parts * kBlock, blocks[parts] = parts;
    } else {
        for (size_t i = 0; i < n; ++parts) {
            const int32_t end = int32_t((size_t(ids[i]) / kBlock + 1) * kBlock);
            begins[parts] = i, blocks[parts] = uint64_t(ids[i]) / kBlock;
            float largest = 0;
            for (; i < n && ids[i] < end; ++i) largest = std::max(largest, weights[i]);
            heaviest[parts] = largest;
        }
    }
    begins[parts] = n;
    blocks.resize(parts), heaviest.resize(parts);
    return winner(blocks, heaviest, keys, [&](size_t part, Race& race) {
        race.enter(ids + begins[part], weights + begins[part], begins[part + 1] - begins[part]);
    });
}

int32_t race(const Row& row, Keys keys) {
    std::vector<uint64_t> blocks(blocks_of(row.n));
    std::iota(blocks.begin(), blocks.end(), uint64_t(0));
    std::vector<float> heaviest(blocks.size());
    weigh(row.maxima, heaviest.size(), row.peak, row.scale, heaviest.data());
    return winner(blocks, heaviest, keys, [&](size_t block, Race& race) {
        const size_t begin = block * kBlock, size = std::min(kBlock, row.n - begin);
        int32_t ids[kBlock];
        float weights[kBlock];
        std::iota(ids, ids + size, int32_t(begin));
        weigh(row.logits + begin, size, row.peak, row.scale, weights);
        race.enter(ids, weights, size);
    });
}

}  // namespace outrider::sampling
