// Linear layers with AVX2: `vpmaddubsw` multiplies 32 weight codes (8 outputs x 4 inputs) by 4 broadcast activations.
//
// 4-bit codes are at most 15, so a whole group of 32 inputs fits in 16-bit sums (8 x 2 x 15 x 127 = 30,480) and is
// widened once. 8-bit codes would saturate: their magnitudes are multiplied by activations that carry the sign, and
// widened every step. Two half tiles share each broadcast. Four rows and two halves make eight integer sums; the float
// sums stay in memory, so that nothing spills from the sixteen registers inside the loop.
#include "attention.h"
#include "linear.h"

namespace outrider {
namespace {

constexpr int kRowsAtOnce = 4;

inline __m256i load_bytes(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

inline __m256i broadcast4(const int8_t* p) {
    int32_t word;
    std::memcpy(&word, p, 4);
    return _mm256_set1_epi32(word);
}

// dot[r][half] = sum over the group of code * activation, in 32 bits; the steps of x lie `stride` bytes apart.
template <Format kFormat, int kRows>
inline void group_dots(const uint8_t* group, const int8_t* x, size_t stride, __m256i (*dot)[2]) {
    const __m256i ones = _mm256_set1_epi16(1);
    if constexpr (kFormat == Format::kQ8) {
        for (int r = 0; r < kRows; ++r) dot[r][0] = dot[r][1] = _mm256_setzero_si256();
        for (int s = 0; s < 8; ++s) {
            for (int half = 0; half < 2; ++half) {
                const __m256i w = load_bytes(group + s * 64 + half * 32), magnitude = _mm256_abs_epi8(w);
                for (int r = 0; r < kRows; ++r) {
                    const __m256i signed_x = _mm256_sign_epi8(broadcast4(x + s * stride + r * 4), w);
                    const __m256i pairs = _mm256_maddubs_epi16(magnitude, signed_x);
                    dot[r][half] = _mm256_add_epi32(dot[r][half], _mm256_madd_epi16(pairs, ones));
                }
            }
        }
    } else {
        const __m256i low = _mm256_set1_epi8(15);
        __m256i sum[kRows][2];
        for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = _mm256_setzero_si256();
#pragma GCC unroll 1  // unrolled further, GCC keeps more values alive than there are registers
        for (int s = 0; s < 4; ++s) {
            const __m256i first = load_bytes(group + s * 64), second = load_bytes(group + s * 64 + 32);
            const int8_t* xs = x + s * 2 * stride;
            const __m256i a0 = _mm256_and_si256(first, low), b0 = _mm256_and_si256(second, low);
            for (int r = 0; r < kRows; ++r) {
                const __m256i v = broadcast4(xs + r * 4);
                sum[r][0] = _mm256_add_epi16(sum[r][0], _mm256_maddubs_epi16(a0, v));
                sum[r][1] = _mm256_add_epi16(sum[r][1], _mm256_maddubs_epi16(b0, v));
            }
            const __m256i a1 = _mm256_and_si256(_mm256_srli_epi16(first, 4), low);
            const __m256i b1 = _mm256_and_si256(_mm256_srli_epi16(second, 4), low);
            for (int r = 0; r < kRows; ++r) {
                const __m256i v = broadcast4(xs + stride + r * 4);
                sum[r][0] = _mm256_add_epi16(sum[r][0], _mm256_maddubs_epi16(a1, v));
                sum[r][1] = _mm256_add_epi16(sum[r][1], _mm256_maddubs_epi16(b1, v));
            }
        }
        for (int r = 0; r < kRows; ++r)
            for (int half = 0; half < 2; ++half) dot[r][half] = _mm256_madd_epi16(sum[r][half], ones);
    }
}

template <Format kFormat, int kRows>
inline void tile_rows(const LinearTask& task, const Ahead& ahead, const uint8_t* data, int row, Vec* acc) {
    constexpr int kOffset = kFormat == Format::kQ4 ? 8 : 0;
    constexpr size_t kCodes = kFormat == Format::kQ8 ? 512 : 256;
    const int groups = task.weight->inputs / kGroup;
    const int lane = row % kRowBlock, block_rows = task.xq.block_rows(row);
    int8_t* x = task.xq.at(row, 0, groups);

    for (int r = 0; r < kRows; ++r) acc[r] = splat(0);
    for (int g = 0; g < groups; ++g) {
        ahead.fetch(data, group_bytes(kFormat));
        __m256i dot[kRows][2];
        group_dots<kFormat, kRows>(data, x + lane * 4, size_t(block_rows) * 4, dot);
        const float* scales = Quantised::scales(x, block_rows) + lane;
        const float* scaled_sums = Quantised::scaled_sums(x, block_rows) + lane;
        const int32_t* sums = Quantised::sums(x, block_rows) + lane;
        const Vec scale = load_half(reinterpret_cast<const uint16_t*>(data + kCodes));
        for (int r = 0; r < kRows; ++r) {
            if constexpr (kOffset != 0) {
                const __m256i offset = _mm256_set1_epi32(-kOffset * sums[r]);
                for (int half = 0; half < 2; ++half) dot[r][half] = _mm256_add_epi32(dot[r][half], offset);
            }
            const Vec products = {_mm256_cvtepi32_ps(dot[r][0]), _mm256_cvtepi32_ps(dot[r][1])};
            acc[r] = fma(products * splat(scales[r]), scale, acc[r]);
        }
        if constexpr (kFormat == Format::kQ4Min) {
            const Vec minimum = load_half(reinterpret_cast<const uint16_t*>(data + kCodes + 32));
            for (int r = 0; r < kRows; ++r) acc[r] = fma(minimum, splat(scaled_sums[r]), acc[r]);
        }
        data += kCodes + (kFormat == Format::kQ4Min ? 64 : 32);
        x += Quantised::kBytes * block_rows;
    }
}

struct Avx2Linear {
    template <Format kFormat>
    static void run(const LinearTask& task, int tile_begin, int tile_end) {
        const Ahead ahead(task, tile_end);
        for_row_blocks<kRowsAtOnce>(task, tile_begin, tile_end, [&](const uint8_t* data, int row, int count, Vec* acc) {
            with_count<kRowsAtOnce>(count, [&](auto rows) { tile_rows<kFormat, rows()>(task, ahead, data, row, acc); });
        });
    }
};

}  // namespace

extern const Kernels kAvx2Kernels;
const Kernels kAvx2Kernels = {"avx2", linear<Avx2Linear>, quantise, rms_norm, rotate, swiglu, maxima,
                              embed,  write_kv, encode_query, attention, merge_attention};

}  // namespace outrider
