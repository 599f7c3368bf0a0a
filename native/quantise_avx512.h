// Rounding to int8 for several rows at once, with AVX-512: what elementwise.h's `quantise` does to a row, to the bit (but
// for the sign of a sum that is 0), for up to eight rows of a block. Their maxima, scales and sums share registers, and
// codes are interleaved in registers, where row by row each takes a reduction, two divisions and eight stores of its own.
#pragma once

#include "elementwise.h"

namespace outrider {
namespace {

// From (a0 a1 a2 a3), (b0 b1 b2 b3), a's and b's quarters of four numbers each: a0 + a1 + a2 + a3, then b's alike, for
// some operation +.
template <class Combine>
inline __m256i fold_quarters(__m512i a, __m512i b, Combine combine) {
    const __m512i halves = combine(_mm512_shuffle_i32x4(a, b, 0x44), _mm512_shuffle_i32x4(a, b, 0xee));
    return _mm512_castsi512_si256(combine(_mm512_shuffle_i32x4(halves, halves, 0x88),
                                          _mm512_shuffle_i32x4(halves, halves, 0xdd)));
}

// The rows [first, last) of one block. Registers that hold a number of each row are filled up with copies of the last.
class RowsOfBlock {
public:
    RowsOfBlock(Matrix x, Quantised out, int inputs, int first, int last)
        : width_(out.block_rows(first)), lane_(first % kRowBlock) {
        const int count = last - first;
        for (int r = 0; r < kRowBlock; ++r) in_[r] = x.row(r < count ? first + r : last - 1);
        rows_ = __mmask8((1u << count) - 1);
        to_ = out.at(first, 0, inputs / kGroup);
        // Two steps of four inputs side by side: where each of their words lies in two registers of [step][four rows].
        alignas(64) int32_t from[2][kLanes] = {};
        words_ = 0;
        for (int at = 0; at < 2 * width_; ++at) {
            const int row = at % width_ - lane_, step = at / width_;
            if (row < 0 || row >= count) continue;
            words_ = __mmask16(words_ | 1u << at);
            for (int pair = 0; pair < 2; ++pair) from[pair][at] = row / 4 * kLanes + (2 * pair + step) * 4 + row % 4;
        }
        for (int pair = 0; pair < 2; ++pair) from_[pair] = _mm512_load_si512(from[pair]);
    }

    void quantise(int group) const {
        __m512 low[kRowBlock], high[kRowBlock];
        __m512i magnitudes[kRowBlock];
        for (int r = 0; r < kRowBlock; ++r) {
            low[r] = _mm512_loadu_ps(in_[r] + group * kGroup);
            high[r] = _mm512_loadu_ps(in_[r] + group * kGroup + kLanes);
            magnitudes[r] = _mm512_castps_si512(max_magnitude(Vec{low[r]}, Vec{high[r]}).v);
        }
        const __m256 magnitude = _mm256_castsi256_ps(
            fold_quarters(largest_of_four(magnitudes), largest_of_four(magnitudes + 4), greater));
        const __m256 scale = _mm256_castsi256_ps(_mm256_and_si256(
            _mm256_castps_si256(_mm256_div_ps(magnitude, _mm256_set1_ps(127.0f))), _mm256_set1_epi32(~3)));
        const __mmask8 counts = _mm256_cmp_ps_mask(magnitude, _mm256_set1_ps(kSmallest), _CMP_GT_OQ);
        alignas(32) float inverse[kRowBlock];
        _mm256_store_ps(inverse, _mm256_maskz_div_ps(counts, _mm256_set1_ps(127.0f), magnitude));

        __m512i codes[2][2];  // of inputs 0..15 and 16..31, of rows 0..3 and 4..7, as [step][row][4]
        for (int half = 0; half < 2; ++half) {
            const __m512* x = half ? high : low;
            __m512i words[kRowBlock];
            for (int r = 0; r < kRowBlock; ++r)  // the lowest byte alone: of INT_MIN, what a NaN converts to, it is 0
                words[r] = _mm512_and_si512(_mm512_cvtps_epi32(_mm512_mul_ps(x[r], _mm512_set1_ps(inverse[r]))),
                                            _mm512_set1_epi32(0xff));
            for (int four = 0; four < 2; ++four) {
                const __m512i* w = words + 4 * four;
                codes[half][four] = _mm512_packus_epi16(_mm512_packus_epi32(w[0], w[1]), _mm512_packus_epi32(w[2], w[3]));
            }
        }
        const __m256i sums = fold_quarters(sum_of_four(codes[0][0], codes[1][0]), sum_of_four(codes[0][1], codes[1][1]),
                                           [](__m512i a, __m512i b) { return _mm512_add_epi32(a, b); });

        int8_t* to = to_ + size_t(group) * width_ * Quantised::kBytes;
        for (int half = 0; half < 2; ++half)
            for (int pair = 0; pair < 2; ++pair)
                _mm512_mask_storeu_epi32(to + (2 * half + pair) * 8 * width_, words_,
                                         _mm512_permutex2var_epi32(codes[half][0], from_[pair], codes[half][1]));
        _mm256_mask_storeu_ps(Quantised::scales(to, width_) + lane_, rows_, scale);
        _mm256_mask_storeu_ps(Quantised::zeros(to, width_) + lane_, rows_, _mm256_mul_ps(_mm256_set1_ps(-kCounted), scale));
        _mm256_mask_storeu_ps(Quantised::scaled_sums(to, width_) + lane_, rows_,
                              _mm256_mul_ps(scale, _mm256_cvtepi32_ps(sums)));
        _mm256_mask_storeu_epi32(Quantised::sums(to, width_) + lane_, rows_, sums);
    }

private:
    // Magnitudes compare as integers, where NaN is the greatest.
    static __m512i greater(__m512i a, __m512i b) { return _mm512_max_epi32(a, b); }
    // In each quarter the largest number of that quarter of four registers.
    static __m512i largest_of_four(const __m512i* m) {
        const __m512i a = greater(_mm512_unpacklo_epi32(m[0], m[1]), _mm512_unpackhi_epi32(m[0], m[1]));
        const __m512i b = greater(_mm512_unpacklo_epi32(m[2], m[3]), _mm512_unpackhi_epi32(m[2], m[3]));
        return greater(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    }
    // Sums of the four codes of each word.
    static __m512i sum_of_four(__m512i a, __m512i b) {
        const __m512i ones = _mm512_set1_epi8(1);
        return _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, a), ones, b);
    }

    const float* in_[kRowBlock];
    int width_, lane_;
    int8_t* to_;  // the block's first group
    __mmask8 rows_;
    __mmask16 words_;
    __m512i from_[2];
};

inline void quantise_rows(Matrix x, Quantised out, int inputs, int row_begin, int row_end, int column_begin,
                          int column_end) {
    constexpr int kFew = 2;  // rows that are sooner done one by one
    for (int first = row_begin, last; first < row_end; first = last) {
        last = (first / kRowBlock + 1) * kRowBlock;
        if (last > row_end) last = row_end;
        if (last - first <= kFew) {
            quantise(x, out, inputs, first, last, column_begin, column_end);
            continue;
        }
        const RowsOfBlock rows(x, out, inputs, first, last);
        for (int g = column_begin / kGroup; g < column_end / kGroup; ++g) rows.quantise(g);
    }
}

}  // namespace
}  // namespace outrider
