// From logits to the law of a token: what top-k, top-p and min-p leave.
#include <cmath>
#include <functional>

#include "sampling.h"

#ifdef PROCESSORS_DIFFER
#include <immintrin.h>
#endif

namespace outrider::sampling {
namespace {

constexpr size_t kRoom = 16;  // values that are written together

// Copies the values from `floor` on and below `ceiling` to `kept`, in order, and their names (none: `first`, `first` + 1
// and so on) to `names_kept`. Both need room for kRoom more than there are, and may be where the values and names are.
#ifdef PROCESSORS_DIFFER
__attribute__((target("avx512f"))) size_t compact_16(float floor, float ceiling, const float* values,
                                                     const int32_t* names, int32_t first, size_t n, float* kept,
                                                     int32_t* names_kept) {
    const __m512 least = _mm512_set1_ps(floor), most = _mm512_set1_ps(ceiling);
    const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    size_t count = 0;
    for (size_t i = 0; i < n; i += 16) {
        const __mmask16 here = n - i < 16 ? __mmask16((1u << (n - i)) - 1) : __mmask16(0xffff);
        const __m512 next = _mm512_maskz_loadu_ps(here, values + i);
        const __mmask16 large = _mm512_mask_cmp_ps_mask(here, next, least, _CMP_GE_OQ);
        const __mmask16 inside = _mm512_mask_cmp_ps_mask(large, next, most, _CMP_LT_OQ);
        const __m512i name = names ? _mm512_maskz_loadu_epi32(here, names + i)
                                   : _mm512_add_epi32(lanes, _mm512_set1_epi32(first + int32_t(i)));
        _mm512_storeu_ps(kept + count, _mm512_maskz_compress_ps(inside, next));
        _mm512_storeu_si512(names_kept + count, _mm512_maskz_compress_epi32(inside, name));
        count += size_t(__builtin_popcount(inside));
    }
    return count;
}
#endif

size_t compact(float floor, float ceiling, const float* values, const int32_t* names, int32_t first, size_t n,
               float* kept, int32_t* names_kept) {
#ifdef PROCESSORS_DIFFER
    static const bool wide = __builtin_cpu_supports("avx512f");
    if (wide) return compact_16(floor, ceiling, values, names, first, n, kept, names_kept);
#endif
    size_t count = 0;
    for (size_t i = 0; i < n; ++i) {  // without a branch: the next one may overwrite it
        const float value = values[i];
        names_kept[count] = names ? names[i] : first + int32_t(i);
        kept[count] = value;
        count += value >= floor && value < ceiling;
    }
    return count;
}

Tokens room_for(size_t n) {
    n += kRoom;
    return {0, std::make_unique_for_overwrite<int32_t[]>(n), std::make_unique_for_overwrite<float[]>(n)};
}

size_t values_from(float floor, const float* maxima, size_t n) {
    return kBlock * size_t(std::count_if(maxima, maxima + blocks_of(n), [&](float each) { return each >= floor; }));
}

// Puts the tokens whose values are at least `floor` into `kept`; maxima: of the values' blocks.
void keep_from(float floor, const float* values, size_t n, const float* maxima, Tokens& kept) {
    kept.n = 0;
    for (size_t block = 0; block < blocks_of(n); ++block) {
        const size_t start = block * kBlock;
        while (block < blocks_of(n) && maxima[block] >= floor) ++block;
        const size_t end = std::min(n, block * kBlock);
        if (start < end)
            kept.n += compact(floor, kInfinity, values + start, nullptr, int32_t(start), end - start,
                              kept.values.get() + kept.n, kept.ids.get() + kept.n);
    }
}

// Likewise, in new memory.
Tokens from(float floor, const float* values, size_t n, const float* maxima) {
    Tokens kept = room_for(values_from(floor, maxima, n));
    keep_from(floor, values, n, maxima, kept);
    return kept;
}

// The tokens from `floor` on and below `ceiling`; `found` may be the tokens.
void between(float floor, float ceiling, const Tokens& tokens, Tokens& found) {
    found.n = compact(floor, ceiling, tokens.values.get(), tokens.ids.get(), 0, tokens.n, found.values.get(),
                      found.ids.get());
}

struct Candidate {
    float value;
    int32_t id;
    // The larger value comes first; of equal ones the one of the lower id.
    bool operator<(const Candidate& other) const {
        return value > other.value || (value == other.value && id < other.id);
    }
};

std::vector<Candidate> candidates(const Tokens& tokens) {
    std::vector<Candidate> found(tokens.n);
    for (size_t i = 0; i < tokens.n; ++i) found[i] = {tokens.values[i], tokens.ids[i]};
    return found;
}

// The tokens without those that come after `last`.
Tokens up_to(const Candidate& last, const Tokens& tokens) {
    Tokens kept = room_for(tokens.n);
    between(last.value, kInfinity, tokens, kept);
    int32_t* ids = kept.ids.get();
    const size_t n = size_t(std::upper_bound(ids, ids + kept.n, last.id) - ids);  // after these, no ties are kept
    float* values = kept.values.get() + n;
    const float larger = std::nextafter(last.value, kInfinity);
    kept.n = n + compact(larger, kInfinity, values, ids + n, 0, kept.n - n, values, ids + n);
    return kept;
}

// The k largest logits, k < n.
Tokens top_k(const Row& row, size_t k) {
    const size_t blocks = blocks_of(row.n);
    float floor = -kInfinity;
    if (k <= blocks) {  // at least k logits reach the k-th largest of the maxima
        std::vector<float> sorted(row.maxima, row.maxima + blocks);
        std::nth_element(sorted.begin(), sorted.begin() + (k - 1), sorted.end(), std::greater<float>());
        floor = sorted[k - 1];
    }
    Tokens kept = from(floor, row.logits, row.n, row.maxima);
    std::vector<Candidate> near = candidates(kept);
    std::nth_element(near.begin(), near.begin() + (k - 1), near.end());
    return up_to(near[k - 1], kept);
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

// Where the weights below hold about `mass` together, of all n, by a sample of them: from `floor` to 1.
float about(double mass, const std::vector<float>& sample, size_t n, float floor) {
    float ceiling = 1;
    const double all = mass_from(0, sample.data(), sample.size()).sum;
    const double missed = mass * double(sample.size()) / double(n);
    while (ceiling > 1.1f * floor) {
        const float middle = std::sqrt(floor) * std::sqrt(ceiling);
        (all - mass_from(middle, sample.data(), sample.size()).sum <= missed ? floor : ceiling) = middle;
    }
    return floor;
}

// Memory that top_p keeps from call to call, since the system takes its time to give new.
struct Scratch {
    Tokens kept, near;
    std::vector<float> weights;

    void reserve(size_t n) {
        if (weights.size() >= n) return;
        weights.resize(n);
        kept = room_for(n), near = room_for(n);
    }
};

Scratch& scratch(size_t n) {
    static thread_local Scratch memory;
    memory.reserve(n);
    return memory;
}

// The fewest largest of n weights, of at most 1 and of sum `total`, whose sum reaches `share` of it. maxima: of the
// weights' blocks; ids: their names, ascending, none: 0, 1, ....
Tokens top_p(const float* weights, const int32_t* ids, const float* maxima, size_t n, double total, double share) {
    auto& [kept, near, _] = scratch(n);
    const double enough = share * total, spare = total - enough;
    const auto keep = [&](float floor) {
        keep_from(floor, weights, n, maxima, kept);
        return mass_from(0, kept.values.get(), kept.n).sum >= enough;
    };
    // Of weights below this, all together would not reach what is spare; a millionth is room for rounding.
    const float least = 1 - share > 1e-6 ? float((1 - 1e-6) * spare / double(n)) : 0;
    float floor = least, ceiling = 2;
    if (n > 8192 && least > std::numeric_limits<float>::min()) {
        // The last weight that is needed is, most likely, near that below which a sample has what is spare.
        std::vector<float> sample;
        for (size_t start = 0; start + kBlock <= n; start += n / 2048 * kBlock)
            sample.insert(sample.end(), weights + start, weights + start + kBlock);
        const float guess = about(spare, sample, n, least);
        floor = guess / 1.25f, ceiling = guess * 1.25f;
    }
    if (!keep(floor) && floor > least) keep(floor = least);
    Mass out_of_reach = mass_from(ceiling, kept.values.get(), kept.n);
    if (out_of_reach.sum >= enough) ceiling = 2, out_of_reach = {0, 0};
    between(floor, ceiling, kept, near);
    // The weights from `floor` on are enough, those from `ceiling` on are not: the last one needed is between.
    Mass above = out_of_reach;
    for (size_t left = near.n; left > 512;) {  // sorting out more would take longer
        const float middle = ceiling > 8 * floor ? ceiling / 8 : floor + (ceiling - floor) / 2;
        if (middle <= floor || middle >= ceiling) break;
        Mass half = mass_from(middle, near.values.get(), near.n);
        half.sum += out_of_reach.sum, half.count += out_of_reach.count;
        const size_t upper = half.count - above.count;
        if (half.sum >= enough)
            floor = middle, left = upper;
        else
            ceiling = middle, left -= upper, above = half;
    }
    between(floor, ceiling, near, near);
    Tokens found = up_to(last_needed(candidates(near), enough - above.sum), kept);
    for (size_t i = 0; ids && i < found.n; ++i) found.ids[i] = ids[found.ids[i]];
    return found;
}

// The weights of a row, their sum, and how many are above 0.
Mass weigh_all(const Row& row, float* weights) {
    Mass all{0, 0};
    for (size_t start = 0; start < row.n; start += kStretch) {  // each is summed while it is near
        const size_t size = std::min(kStretch, row.n - start);
        weigh(row.logits + start, size, row.peak, row.scale, weights + start);
        const Mass mass = mass_from(std::numeric_limits<float>::min(), weights + start, size);
        all.sum += mass.sum, all.count += mass.count;
    }
    return all;
}

// The law of those tokens whose weights are at least `floor`.
Law law_from(float floor, Tokens tokens) {
    const Mass mass = mass_from(floor, tokens.values.get(), tokens.n);
    if (mass.count < tokens.n) between(floor, kInfinity, tokens, tokens);
    return {std::move(tokens), mass.sum};
}

}  // namespace

Law law(const Row& row, size_t k, double share, double least) {
    constexpr float kLeast = std::numeric_limits<float>::min();
    const float floor = std::max(float(least), kLeast);  // the largest weight is 1
    if (k > 0 && k < row.n) {
        Tokens tokens = top_k(row, k);
        float* weights = tokens.values.get();
        weigh(weights, tokens.n, row.peak, row.scale, weights);
        if (share < 1) {
            const double total = mass_from(0, weights, tokens.n).sum;
            tokens = top_p(weights, tokens.ids.get(), maxima_of(weights, tokens.n).data(), tokens.n, total, share);
        }
        return law_from(floor, std::move(tokens));
    }
    if (share == 1 && least > 0) {
        // Logits below the edge have too small weights; a thousandth and a millionth are room for rounding.
        const double edge = double(row.peak) + (std::log(least) - 1e-3) / double(row.scale);
        Tokens tokens = from(float(edge - std::abs(edge) * 1e-6), row.logits, row.n, row.maxima);
        weigh(tokens.values.get(), tokens.n, row.peak, row.scale, tokens.values.get());
        return law_from(floor, std::move(tokens));
    }
    std::vector<float> maxima(blocks_of(row.n));
    weigh(row.maxima, maxima.size(), row.peak, row.scale, maxima.data());
    if (share < 1) {
        float* weights = scratch(row.n).weights.data();
        const double total = weigh_all(row, weights).sum;
        return law_from(floor, top_p(weights, nullptr, maxima.data(), row.n, total, share));
    }
    auto weights = std::make_unique_for_overwrite<float[]>(row.n);
    const Mass all = weigh_all(row, weights.get());
    if (all.count == row.n) return {{row.n, nullptr, std::move(weights)}, all.sum};
    return law_from(floor, from(kLeast, weights.get(), row.n, maxima.data()));
}

bool is_needed(int32_t id, const Row& row, double share) {
    constexpr float kRoom = 1 + 1e-5f;  // for rounding
    std::vector<float> maxima(blocks_of(row.n));
    weigh(row.maxima, maxima.size(), row.peak, row.scale, maxima.data());
    float own;
    weigh(row.logits + id, 1, row.peak, row.scale, &own);
    double all = 0, large = 0;  // sums of all weights that were looked at, and of those that are not below its own
    const auto look = [&](bool near) {  // at the blocks that may have such a weight, or at the others
        const auto chosen = [&](size_t block) { return (maxima[block] * kRoom >= own) == near; };
        for (size_t first = 0, end = 0; first < maxima.size(); first = end) {
            while (end < maxima.size() && end - first < kStretch / kBlock && chosen(end)) ++end;
            const size_t start = first * kBlock, size = std::min(row.n, end * kBlock) - start;
            if (size == 0) {
                ++end;
                continue;
            }
            float weights[kStretch];
            weigh(row.logits + start, size, row.peak, row.scale, weights);
            const Sums sums = sums_of(weights, size, own);
            all += sums.all, large += sums.large;
        }
    };
    const auto certain = [&](double total) { return large * kRoom - own < share * total / kRoom; };
    look(true);
    double least = all;  // of the others, at least the largest of each block
    for (const float each : maxima) least += each * kRoom < own ? each : 0;
    if (certain(least)) return true;
    look(false);
    return certain(all);
}

}  // namespace outrider::sampling
