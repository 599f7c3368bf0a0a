// Linear layers with AVX-512 VNNI: `vpdpbusd` multiplies 64 unsigned weight codes by 4 broadcast activations and adds
// them to 16 sums. A tile of 16 outputs fills one register, and its group of 32 inputs is unpacked once for all rows. One
// row of one group then costs eight broadcasts, eight multiplies and three float operations: sums are counted in the bits
// of a float, 1.5 2^23 + sum, so that fma(float, scale, zero) is what converting and multiplying would give, to the bit
// (unless the zero overflows, where activations exceed 3e33: then it is no number).
#include "attention.h"
#include "linear.h"
#include "quantise_avx512.h"

namespace outrider {
namespace {

inline __m512 half_row(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

// Sums of products of codes with four activations, the same for all outputs. In assembly, since GCC 12 broadcasts with an
// instruction of its own where it is given the intrinsic: 64 more for 64 multiplies.
inline __m512i add_products(__m512i sums, __m512i codes, const int8_t* activations) {
    using Four = int32_t __attribute__((may_alias, aligned(1)));
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sums) : "v"(codes), "m"(*reinterpret_cast<const Four*>(activations)));
    return sums;
}

// The eight registers of a group's codes, as unsigned bytes.
template <Format kFormat>
inline void unpack(const uint8_t* group, __m512i* codes) {
    if constexpr (kFormat == Format::kQ8) {
        for (int s = 0; s < 8; ++s)
            codes[s] = _mm512_xor_si512(_mm512_loadu_si512(group + s * 64), _mm512_set1_epi8(char(0x80)));
    } else {
        const __m512i low = _mm512_set1_epi8(15);
        for (int s = 0; s < 4; ++s) {
            const __m512i pair = _mm512_loadu_si512(group + s * 64);
            codes[2 * s] = _mm512_and_si512(pair, low);
            codes[2 * s + 1] = _mm512_and_si512(_mm512_srli_epi16(pair, 4), low);
        }
    }
}

template <Format kFormat, int kRows>
inline void tile_rows(const LinearTask& task, const Ahead& ahead, const uint8_t* data, int row, Vec* acc) {
    constexpr int kOffset = kFormat == Format::kQ8 ? 128 : kFormat == Format::kQ4 ? 8 : 0;
    constexpr size_t kCodes = kFormat == Format::kQ8 ? 512 : 256;
    const int groups = task.weight->inputs / kGroup;
    int8_t* x = task.xq.at(row, 0, groups);  // whole blocks come before, and this one has kRows rows

    __m512 total[kRows];
    for (int r = 0; r < kRows; ++r) total[r] = _mm512_setzero_ps();
    for (int g = 0; g < groups; ++g) {
        ahead.fetch(data, group_bytes(kFormat));
        __m512i codes[8], dot[kRows];
        unpack<kFormat>(data, codes);
        const float *scales = Quantised::scales(x, kRows), *zeros = Quantised::zeros(x, kRows);
        const float* scaled_sums = Quantised::scaled_sums(x, kRows);
        const int32_t* sums = Quantised::sums(x, kRows);
        for (int r = 0; r < kRows; ++r)
            dot[r] = _mm512_set1_epi32(kOffset ? kOneAndAHalf - kOffset * sums[r] : kOneAndAHalf);
        for (int s = 0; s < 8; ++s)
            for (int r = 0; r < kRows; ++r)
                dot[r] = add_products(dot[r], codes[s], x + (s * kRows + r) * 4);
        const __m512 scale = half_row(data + kCodes);
        for (int r = 0; r < kRows; ++r)
            total[r] = _mm512_fmadd_ps(
                _mm512_fmadd_ps(_mm512_castsi512_ps(dot[r]), _mm512_set1_ps(scales[r]), _mm512_set1_ps(zeros[r])), scale,
                total[r]);
        if constexpr (kFormat == Format::kQ4Min) {
            const __m512 minimum = half_row(data + kCodes + 32);
            for (int r = 0; r < kRows; ++r)
                total[r] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(scaled_sums[r]), total[r]);
        }
        data += kCodes + (kFormat == Format::kQ4Min ? 64 : 32);
        x += Quantised::kBytes * kRows;
    }
    for (int r = 0; r < kRows; ++r) acc[r].v = total[r];
}

struct Avx512Linear {
    template <Format kFormat>
    static void run(const LinearTask& task, int tile_begin, int tile_end) {
        const Ahead ahead(task, tile_end);
        for_row_blocks<kRowBlock>(task, tile_begin, tile_end, [&](const uint8_t* data, int row, int count, Vec* acc) {
            with_count<kRowBlock>(count, [&](auto rows) { tile_rows<kFormat, rows()>(task, ahead, data, row, acc); });
        });
    }
};

}  // namespace

extern const Kernels kAvx512Kernels;
const Kernels kAvx512Kernels = {"avx512vnni", linear<Avx512Linear>, quantise_rows, rms_norm,     rotate,   swiglu,
                                maxima,       embed,                write_kv,      encode_query, attention,
                                merge_attention};

}  // namespace outrider
