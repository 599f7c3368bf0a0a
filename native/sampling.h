// The hot part of sampling, one row at a time: from logits to weights (sampling_weights.cpp), to the law of a token
// (sampling_law.cpp), and from a law to a token (sampling_draw.cpp). Every sum runs in one order, whatever the processor,
// and no operation is fused: a row's bits depend on that row alone. Whoever needs a weight gets it from `weigh`.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <vector>

// GCC compiles such a loop once per instruction set, and chooses when the module is loaded.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define PROCESSORS_DIFFER
#define PER_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define PER_PROCESSOR
#endif

namespace outrider::sampling {

constexpr size_t kBlock = 32;     // values that are passed over together; `Output.maxima` has the largest logit of each
constexpr size_t kStretch = 512;  // values that are summed together
constexpr float kInfinity = std::numeric_limits<float>::infinity();

inline size_t blocks_of(size_t n) { return (n + kBlock - 1) / kBlock; }

// The logits of a row. maxima: of each block.
struct Row {
    const float* logits;
    const float* maxima;
    size_t n;
    float peak;   // the largest logit
    float scale;  // 1 / temperature
};

// Tokens that are still possible, ascending, with their logits or weights.
struct Tokens {
    size_t n;
    std::unique_ptr<int32_t[]> ids;  // none: 0 .. n - 1
    std::unique_ptr<float[]> values;
};

struct Law {
    Tokens tokens;  // with their weights, all above 0
    double total;
};

// Where the largest value is, the first on ties; NaN counts as the largest, as in NumPy's argmax.
size_t first_largest(const float* values, size_t n);

// The largest value of each block; NaN if one of them is.
std::vector<float> maxima_of(const float* values, size_t n);

// weight = e^((logit - peak) * scale), for logits of at most `peak`, within 2 units in the last place; exactly 0 where
// that is below e^-87.3.
void weigh(const float* logits, size_t n, float peak, float scale, float* weights);

struct Likeliest {
    size_t place;   // of the largest logit, the first on ties
    double chance;  // the probability that the logits give it; 0 if it is not a finite number
};
Likeliest likeliest(const float* logits, size_t n);

struct Mass {
    double sum;
    size_t count;
};

// Sum and number of the values of at least `floor`; the values are 0 or more.
Mass mass_from(float floor, const float* values, size_t n);

struct Sums {
    double all, large;
};

// Sums of all values and of those of at least `floor`, within a millionth or four; at most kStretch values of 0 or more.
Sums sums_of(const float* values, size_t n, float floor);

// What top-k (0: all), top-p and min-p leave of a row, in this order.
Law law(const Row& row, size_t k, double share, double least);

// Whether top-p certainly keeps a token; where rounding could decide, or it does not, `law` has to tell.
bool is_needed(int32_t id, const Row& row, double share);

// The place whose share of the cumulative sum, in all `total`, holds `uniform`, in (0, 1).
size_t pick(const float* weights, size_t n, double total, double uniform);

// 64 bits for what a random number is for; see `Noise`.
uint64_t key(std::initializer_list<uint64_t> parts);

// The Exp(1) noise of token ids, from the keys of blocks and of ids; see `Noise.exponentials`.
struct Keys {
    uint64_t block, id;
};

// The id of argmin(E_i / weight_i), E_i ~ Exp(1) of the id; the first on ties. ids: ascending.
int32_t race(const int32_t* ids, const float* weights, size_t n, Keys keys);

// The same over all tokens of a row, without computing the weights of those that have no chance.
int32_t race(const Row& row, Keys keys);

}  // namespace outrider::sampling
