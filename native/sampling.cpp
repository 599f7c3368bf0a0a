// The hot part of sampling, one row at a time: from logits to weights, and from weights to a token.
// Every sum runs in one order, whatever the processor, and no operation is fused: a row's bits depend on that row alone.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <vector>

// GCC compiles such a loop once per instruction set, and chooses when the module is loaded.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define PER_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define PER_PROCESSOR
#endif

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

constexpr size_t kBlock = 32;     // values that are passed over together
constexpr size_t kStretch = 512;  // values that are summed together
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Eight lanes at a time; wider than some processors' registers, so never passed to a function.
using Floats8 = float __attribute__((vector_size(32)));
using Ints8 = int32_t __attribute__((vector_size(32)));
using Doubles8 = double __attribute__((vector_size(64)));

// e^x for x <= 0, within 2 units in the last place; exactly 0 below -87.3.
inline float exponential(float x) {
    constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
    const float clamped = x < -87.3f ? -87.3f : x;
    const float n = (clamped * 1.44269504f + kRound) - kRound;
    const float r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const float scale = std::bit_cast<float>((int32_t(n) + 127) << 23);
    return x < -87.3f ? 0.0f : p * scale;
}

PER_PROCESSOR void weigh(const float* logits, size_t n, float peak, float scale, float* weights) {
    for (size_t i = 0; i < n; ++i) weights[i] = exponential((logits[i] - peak) * scale);
}

#define LARGER(x, y) ((x) > (y) ? (x) : (y))

// Where the largest value is, the first on ties; NaN counts as the largest, as in NumPy's argmax.
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

// The largest value of each block.
PER_PROCESSOR void block_maxima(const float* values, size_t n, float* maxima) {
    size_t start = 0;
    for (; start + kBlock <= n; start += kBlock) {
        Floats8 next[kBlock / 8];
        std::memcpy(next, values + start, sizeof next);
        const Floats8 eight = LARGER(LARGER(next[0], next[1]), LARGER(next[2], next[3]));
        const Floats8 four = LARGER(eight, __builtin_shuffle(eight, Ints8{4, 5, 6, 7, 0, 1, 2, 3}));
        const Floats8 two = LARGER(four, __builtin_shuffle(four, Ints8{2, 3, 0, 1, 6, 7, 4, 5}));
        *maxima++ = LARGER(two[0], two[1]);
    }
    if (start < n) *maxima = *std::max_element(values + start, values + n);
}

struct Mass {
    double sum;
    size_t count;
};

// Sum and number of the values of at least `floor`; the values are 0 or more. maxima: of the blocks, or none.
PER_PROCESSOR Mass mass_from(float floor, const float* values, size_t n, const float* maxima) {
    Doubles8 even = {}, odd = {};
    Ints8 kept = {};
    Mass mass{0, 0};
    for (size_t start = 0; start < n; start += kBlock) {
        if (maxima && maxima[start / kBlock] < floor) continue;
        const size_t end = std::min(n, start + kBlock);
        size_t i = start;
        for (; i + 16 <= end; i += 16) {
            Floats8 first, second;
            std::memcpy(&first, values + i, sizeof first);
            std::memcpy(&second, values + i + 8, sizeof second);
            const Ints8 keep_first = first >= floor, keep_second = second >= floor;  // -1 where true
            even += __builtin_convertvector((Floats8)((Ints8)first & keep_first), Doubles8);
            odd += __builtin_convertvector((Floats8)((Ints8)second & keep_second), Doubles8);
            kept -= keep_first + keep_second;
        }
        for (; i < end; ++i)
            if (values[i] >= floor) mass.sum += values[i], ++mass.count;
    }
    even += odd;
    for (int lane = 0; lane < 8; ++lane) mass.sum += even[lane], mass.count += size_t(kept[lane]);
    return mass;
}

// The sum of each stretch.
PER_PROCESSOR void stretch_sums(const float* values, size_t n, double* sums) {
    for (size_t start = 0; start < n; start += kStretch) {
        const size_t end = std::min(n, start + kStretch);
        Doubles8 lanes = {};
        size_t i = start;
        for (; i + 8 <= end; i += 8) {
            Floats8 next;
            std::memcpy(&next, values + i, sizeof next);
            lanes += __builtin_convertvector(next, Doubles8);
        }
        double sum = 0;
        for (; i < end; ++i) sum += values[i];
        for (int lane = 0; lane < 8; ++lane) sum += lanes[lane];
        *sums++ = sum;
    }
}

// Copies the values of at least `floor`, in order, and their places; there must be room for one more than there are.
PER_PROCESSOR size_t compact(float floor, const float* values, size_t n, const float* maxima, float* kept,
                             int32_t* places) {
    size_t count = 0;
    for (size_t start = 0; start < n; start += kBlock) {
        if (maxima && maxima[start / kBlock] < floor) continue;
        const size_t size = std::min(n - start, kBlock);
        size_t here = 0;
        for (size_t i = 0; i < size; ++i) here += values[start + i] >= floor;
        if (here == size) {
            for (size_t i = 0; i < size; ++i) kept[count + i] = values[start + i];
            for (size_t i = 0; i < size; ++i) places[count + i] = int32_t(start + i);
            count += size;
        } else if (here > 0) {
            for (size_t i = start; i < start + size; ++i) {  // without a branch: the next one may overwrite it
                kept[count] = values[i];
                places[count] = int32_t(i);
                count += values[i] >= floor;
            }
        }
    }
    return count;
}

// 64 bits for a number: the finaliser of SplitMix64 (Steele et al. 2014), as in `Noise.exponentials`.
inline uint64_t bits(uint64_t key, int32_t number) {
    uint64_t state = uint64_t(uint32_t(number)) * 0x9E3779B97F4A7C15u + key;
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9u;
    state = (state ^ (state >> 27)) * 0x94D049BB133111EBu;
    return state ^ (state >> 31);
}

// In (0, 1).
inline double uniform(uint64_t bits) { return (double(bits >> 12) + 0.5) * 0x1p-52; }

// The Exp(1) noise of token ids; the twin of `Noise.exponentials`, which says why it is made so.
struct Exponentials {
    uint64_t block_key, key;

    uint64_t block(int32_t id) const { return bits(block_key, id / int32_t(kBlock)); }
    static double first(uint64_t block) { return -std::log(uniform(block)) / kBlock; }
    static bool is_first(uint64_t block, int32_t id) { return id % kBlock == block % kBlock; }
    double operator()(int32_t id) const {
        const uint64_t of_block = block(id);
        return first(of_block) + (is_first(of_block, id) ? 0 : -std::log(uniform(bits(key, id))));
    }
};

struct Places {
    size_t begin, end;
};

// The next places from `start` on, all in one block of ids, that may hold a token with E / weight <= best; or {n, n}. The
// first E of a block is -log(u) / 32 >= (1 - u) / 32, so most blocks need no logarithm.
PER_PROCESSOR Places near_places(const int32_t* ids, const float* weights, size_t start, size_t n, uint64_t block_key,
                                 double best) {
    best *= 1 + 1e-9;  // room for rounding
    while (start < n) {
        const int32_t block = ids[start] / int32_t(kBlock), last = (block + 1) * int32_t(kBlock) - 1;
        size_t end = start + kBlock;
        float heaviest;
        if (end <= n && ids[start] == block * int32_t(kBlock) && ids[end - 1] == last) {
            Floats8 next[kBlock / 8];
            std::memcpy(next, weights + start, sizeof next);
            const Floats8 eight = LARGER(LARGER(next[0], next[1]), LARGER(next[2], next[3]));
            const Floats8 four = LARGER(eight, __builtin_shuffle(eight, Ints8{4, 5, 6, 7, 0, 1, 2, 3}));
            const Floats8 two = LARGER(four, __builtin_shuffle(four, Ints8{2, 3, 0, 1, 6, 7, 4, 5}));
            heaviest = LARGER(two[0], two[1]);
        } else {
            heaviest = weights[start];
            for (end = start + 1; end < n && ids[end] <= last; ++end) heaviest = LARGER(weights[end], heaviest);
        }
        if ((1 - uniform(bits(block_key, block))) / kBlock <= best * double(heaviest)) return {start, end};
        start = end;
    }
    return {n, n};
}

// Tokens that are still possible, ascending, with their logits or weights.
struct Tokens {
    size_t n;
    std::unique_ptr<int32_t[]> ids;  // none: 0 .. n - 1
    std::unique_ptr<float[]> values;
};

Tokens room_for(size_t n) {
    return {0, std::make_unique_for_overwrite<int32_t[]>(n), std::make_unique_for_overwrite<float[]>(n)};
}

struct Candidate {
    float value;
    size_t place;
    // The larger value comes first; of equal ones the one of the lower id.
    bool operator<(const Candidate& other) const {
        return value > other.value || (value == other.value && place < other.place);
    }
};

std::vector<float> maxima_of(const float* values, size_t n) {
    std::vector<float> maxima((n + kBlock - 1) / kBlock);
    block_maxima(values, n, maxima.data());
    return maxima;
}

// The tokens of at least `floor`, which are at most `most`; names: what the places of the values stand for.
Tokens from(float floor, const float* values, size_t n, const float* maxima, size_t most, const int32_t* names) {
    Tokens kept = room_for(most + 1);
    kept.n = compact(floor, values, n, maxima, kept.values.get(), kept.ids.get());
    for (size_t i = 0; names && i < kept.n; ++i) kept.ids[i] = names[kept.ids[i]];
    return kept;
}

// The tokens of at least `floor` and less than `ceiling`.
std::vector<Candidate> between(float floor, float ceiling, const Tokens& tokens) {
    std::vector<Candidate> found;
    for (size_t i = 0; i < tokens.n; ++i)
        if (tokens.values[i] >= floor && tokens.values[i] < ceiling) found.push_back({tokens.values[i], i});
    return found;
}

// Drops the tokens that come after `last`.
void keep_up_to(const Candidate& last, Tokens& tokens) {
    size_t n = 0;
    for (size_t i = 0; i < tokens.n; ++i) {
        if (last < Candidate{tokens.values[i], i}) continue;
        tokens.ids[n] = tokens.ids[i];
        tokens.values[n++] = tokens.values[i];
    }
    tokens.n = n;
}

// The k largest of n logits, k < n.
Tokens top_k(const float* logits, size_t n, size_t k) {
    const std::vector<float> maxima = maxima_of(logits, n);
    float floor = -kInfinity;
    size_t blocks = maxima.size();
    if (k <= blocks) {  // at least k logits reach the k-th largest of the maxima
        std::vector<float> sorted = maxima;
        std::nth_element(sorted.begin(), sorted.begin() + (k - 1), sorted.end(), std::greater<float>());
        floor = sorted[k - 1];
        blocks = size_t(std::count_if(maxima.begin(), maxima.end(), [&](float each) { return each >= floor; }));
    }
    Tokens kept = from(floor, logits, n, maxima.data(), blocks * kBlock, nullptr);
    std::vector<Candidate> near = between(-kInfinity, kInfinity, kept);
    std::nth_element(near.begin(), near.begin() + (k - 1), near.end());
    keep_up_to(near[k - 1], kept);
    return kept;
}

// The last that is needed of these candidates, taken from the largest on, for a sum of `missing`.
Candidate last_needed(std::vector<Candidate> near, double missing) {
    auto begin = near.begin(), end = near.end();
    while (end - begin > 1) {
        const auto middle = begin + (end - begin) / 2;
        std::nth_element(begin, middle, end);
        double sum = 0;
        for (auto each = begin; each != middle; ++each) sum += each->value;
        if (sum >= missing) {
            end = middle;
        } else {
            missing -= sum;
            begin = middle;
        }
    }
    return *begin;
}

// The fewest largest weights, of at most 1, whose sum reaches `share` of all.
Tokens top_p(const Tokens& tokens, double share) {
    const float* weights = tokens.values.get();
    const std::vector<float> maxima = maxima_of(weights, tokens.n);
    const auto mass_of = [&](float floor) { return mass_from(floor, weights, tokens.n, maxima.data()); };
    const double enough = share * mass_of(0).sum;
    // The weights from `floor` on are enough, those from `ceiling` on are not: the last one needed is between.
    float floor = 1, ceiling = 2;
    Mass above{0, 0}, mass = mass_of(floor);
    while (mass.sum < enough && floor > 0) {
        above = mass, ceiling = floor;
        floor = floor > 1e-12f ? floor / 8 : 0;
        mass = mass_of(floor);
    }
    while (mass.count - above.count > 512) {  // sorting out more would take longer
        const float middle = floor + (ceiling - floor) / 2;
        if (middle == floor || middle == ceiling) break;
        const Mass half = mass_of(middle);
        if (half.sum >= enough)
            floor = middle, mass = half;
        else
            ceiling = middle, above = half;
    }
    Tokens kept = from(floor, weights, tokens.n, maxima.data(), mass.count, tokens.ids.get());
    keep_up_to(last_needed(between(floor, ceiling, kept), enough - above.sum), kept);
    return kept;
}

template <class T>
nb::object array(std::unique_ptr<T[]> values, size_t n) {
    T* data = values.release();
    nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
    return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(data, {n}, owner));
}

// Place of the largest logit, the first on ties; NaN counts as the largest. maxima: of each block of logits.
size_t argmax(Floats logits, Floats maxima) {
    const size_t n = logits.shape(0), blocks = maxima.shape(0);
    if (n == 0 || blocks != (n + kBlock - 1) / kBlock) throw std::invalid_argument("maxima: not one per 32 logits");
    const size_t start = first_largest(maxima.data(), blocks) * kBlock;
    return start + first_largest(logits.data() + start, std::min(kBlock, n - start));
}

// Ids (None: all), weights exp((logit - peak) / temperature) and their sum, after top-k, top-p and min-p.
nb::tuple law(Floats logits, float peak, double temperature, size_t k, double share, double least) {
    const size_t n = logits.shape(0);
    const bool few = k > 0 && k < n;
    Tokens tokens = few ? top_k(logits.data(), n, k) : Tokens{n, nullptr, std::make_unique_for_overwrite<float[]>(n)};
    weigh(few ? tokens.values.get() : logits.data(), tokens.n, peak, float(1 / temperature), tokens.values.get());
    if (share < 1) tokens = top_p(tokens, share);
    const float floor = std::max(float(least), std::numeric_limits<float>::min());  // the largest weight is 1
    const Mass mass = mass_from(floor, tokens.values.get(), tokens.n, nullptr);
    if (mass.count < tokens.n)
        tokens = from(floor, tokens.values.get(), tokens.n, nullptr, mass.count, tokens.ids.get());
    nb::object ids = tokens.ids ? array(std::move(tokens.ids), tokens.n) : nb::none();
    return nb::make_tuple(ids, array(std::move(tokens.values), tokens.n), mass.sum);
}

// The place whose share of the cumulative sum holds `uniform`, in (0, 1).
size_t pick(Floats weights, double uniform) {
    const size_t n = weights.shape(0);
    std::vector<double> sums((n + kStretch - 1) / kStretch);
    stretch_sums(weights.data(), n, sums.data());
    double left = uniform * std::accumulate(sums.begin(), sums.end(), 0.0);
    size_t stretch = 0;
    while (stretch + 1 < sums.size() && left >= sums[stretch]) left -= sums[stretch++];
    const size_t end = std::min(n, (stretch + 1) * kStretch) - 1;
    size_t place = stretch * kStretch;
    while (place < end && left >= weights.data()[place]) left -= weights.data()[place++];
    return place;
}

// argmin(E_i / weight_i), E_i ~ Exp(1) of the id; the first on ties. ids: ascending.
size_t race(Ints ids, Floats weights, uint64_t block_key, uint64_t key) {
    const size_t n = std::min(ids.shape(0), weights.shape(0));
    const int32_t* id = ids.data();
    const float* weight = weights.data();
    const Exponentials exponential{block_key, key};
    size_t winner = first_largest(weight, n);  // whoever is likely to win leaves few others a chance
    double best = exponential(id[winner]) / weight[winner];
    for (Places places{0, 0};;) {
        places = near_places(id, weight, places.end, n, block_key, best);
        if (places.begin == n) return winner;
        const uint64_t block = exponential.block(id[places.begin]);
        const double first = Exponentials::first(block);
        for (size_t i = places.begin; i < places.end; ++i) {
            double arrival = first;
            if (!Exponentials::is_first(block, id[i])) {
                const double u = uniform(bits(key, id[i]));
                if (first + (1 - u) > best * (1 + 1e-9) * double(weight[i])) continue;
                arrival += -std::log(u);
            }
            arrival /= weight[i];
            if (arrival < best || (arrival == best && i < winner)) best = arrival, winner = i;
        }
    }
}

}  // namespace

NB_MODULE(_sampling, module) {
    module.def("argmax", &argmax, "logits"_a, "maxima"_a);
    module.def("law", &law, "logits"_a, "peak"_a, "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a);
    module.def("pick", &pick, "weights"_a, "uniform"_a);
    module.def("race", &race, "ids"_a, "weights"_a, "block_key"_a, "key"_a);
}
