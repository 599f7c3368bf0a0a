// Sixteen floats as one value, in the instruction set that the including file is compiled for.
//
// Attention and the elementwise operations are written once on this type. Nothing here reassociates: a reduction has
// one fixed order, so a row's bits are the same whatever else is in the pass.
#pragma once

#include <cstdint>
#include <type_traits>

#include "half.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace outrider {
namespace {  // one copy per instruction set: these must never be merged across files by the linker

constexpr int kLanes = 16;

#if defined(__AVX512F__)

struct Vec {
    __m512 v;
};
inline Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
inline Vec splat(float x) { return {_mm512_set1_ps(x)}; }
inline Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec fused(Vec a, Vec b, Vec c) { return fma(a, b, c); }  // in plain C++ too
inline Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Vec round_even(Vec a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline Vec load_half(const uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline void store_half(uint16_t* p, Vec a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
inline Vec load_bfloat(const uint16_t* p) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
}
// Whole numbers in [-128, 127] as bytes; NaN becomes 0.
inline void store_codes(int8_t* p, Vec a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v)));
}
// Numbers rounded to 16-bit integers, which must hold them; NaN becomes 0.
inline void store_shorts(int16_t* p, Vec a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(a.v)));
}
// The same into halves of 16 words: those of `low` into the lower ones.
inline void store_pairs(int32_t* p, Vec low, Vec high) {
    const __m512i upper = _mm512_slli_epi32(_mm512_cvtps_epi32(high.v), 16);
    _mm512_storeu_si512(p, _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_cvtps_epi32(low.v), upper));
}
// The sum of two numbers' bits, those of the second shifted into the exponent.
inline Vec add_exponent(Vec a, Vec b) {
    return {_mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_castps_si512(a.v), _mm512_slli_epi32(_mm512_castps_si512(b.v), 23)))};
}
// Eight numbers, each in two lanes.
inline Vec load_twice(const float* p) {
    const __m512i lanes = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return {_mm512_permutexvar_ps(lanes, _mm512_castps256_ps512(_mm256_loadu_ps(p)))};
}
// Lanes 2i and 2i + 1 exchanged.
inline Vec swap_pairs(Vec a) { return {_mm512_permute_ps(a.v, 0xb1)}; }
// The first `count` lanes of a, `fill` in the others.
inline Vec keep_first(Vec a, int count, float fill) {
    const __mmask16 mask = count >= 16 ? 0xffff : count <= 0 ? 0 : __mmask16((1u << count) - 1);
    return {_mm512_mask_blend_ps(mask, _mm512_set1_ps(fill), a.v)};
}
// Largest magnitude of both; magnitudes compare as integers, where NaN is the greatest, so a NaN is never lost.
inline Vec max_magnitude(Vec a, Vec b) {
    const __m512i mask = _mm512_set1_epi32(0x7fffffff);
    return {_mm512_castsi512_ps(_mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(a.v), mask),
                                                 _mm512_and_si512(_mm512_castps_si512(b.v), mask)))};
}

// Sixteen 32-bit integers: sums of products of pairs of 16-bit ones.
struct Ints {
    __m512i v;
};
inline Ints zeros() { return {_mm512_setzero_si512()}; }
inline Ints load_pairs(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
inline Ints splat_pair(int32_t pair) { return {_mm512_set1_epi32(pair)}; }
// In assembly, since GCC 12 copies every sum once or twice per step where it is given the intrinsic in a loop.
inline Ints add_products(Ints sums, Ints a, Ints b) {
    asm("vpdpwssd %2, %1, %0" : "+v"(sums.v) : "v"(a.v), "v"(b.v));
    return sums;
}
inline Vec to_floats(Ints a) { return {_mm512_cvtepi32_ps(a.v)}; }

#elif defined(__AVX2__)

struct Vec {
    __m256 a, b;
};
inline Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, Vec x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
inline Vec splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Vec operator+(Vec x, Vec y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline Vec operator-(Vec x, Vec y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline Vec operator*(Vec x, Vec y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline Vec operator/(Vec x, Vec y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline Vec fma(Vec x, Vec y, Vec z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
inline Vec fused(Vec x, Vec y, Vec z) { return fma(x, y, z); }
inline Vec max(Vec x, Vec y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline Vec min(Vec x, Vec y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline Vec round_even(Vec x) {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(x.a, mode), _mm256_round_ps(x.b, mode)};
}
inline Vec load_half(const uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline void store_half(uint16_t* p, Vec x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}
inline Vec load_bfloat(const uint16_t* p) {
    const __m256i low = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i high = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(high, 16))};
}
inline void store_codes(int8_t* p, Vec x) {
    const __m256i low_byte = _mm256_set1_epi32(0xff);  // of INT_MIN, what a NaN converts to, it is 0
    const __m256i low = _mm256_and_si256(_mm256_cvtps_epi32(x.a), low_byte);
    const __m256i high = _mm256_and_si256(_mm256_cvtps_epi32(x.b), low_byte);
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
    const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}
inline void store_shorts(int16_t* p, Vec x) {
    const __m256i low_short = _mm256_set1_epi32(0xffff);
    const __m256i low = _mm256_and_si256(_mm256_cvtps_epi32(x.a), low_short);
    const __m256i high = _mm256_and_si256(_mm256_cvtps_epi32(x.b), low_short);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8));
}
inline __m256i pairs_half(__m256 low, __m256 high) {
    return _mm256_blend_epi16(_mm256_cvtps_epi32(low), _mm256_slli_epi32(_mm256_cvtps_epi32(high), 16), 0xaa);
}
inline void store_pairs(int32_t* p, Vec low, Vec high) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), pairs_half(low.a, high.a));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), pairs_half(low.b, high.b));
}
inline __m256 add_exponent_half(__m256 x, __m256 y) {
    return _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(x), _mm256_slli_epi32(_mm256_castps_si256(y), 23)));
}
inline Vec add_exponent(Vec x, Vec y) { return {add_exponent_half(x.a, y.a), add_exponent_half(x.b, y.b)}; }
inline Vec load_twice(const float* p) {
    const __m256 all = _mm256_loadu_ps(p);
    return {_mm256_permutevar8x32_ps(all, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)),
            _mm256_permutevar8x32_ps(all, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7))};
}
inline Vec swap_pairs(Vec x) { return {_mm256_permute_ps(x.a, 0xb1), _mm256_permute_ps(x.b, 0xb1)}; }
inline Vec keep_first(Vec x, int count, float fill) {
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256 low = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count), lanes));
    const __m256 high = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count - 8), lanes));
    const __m256 other = _mm256_set1_ps(fill);
    return {_mm256_blendv_ps(other, x.a, low), _mm256_blendv_ps(other, x.b, high)};
}
inline __m256 max_magnitude_half(__m256 x, __m256 y) {
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_and_si256(_mm256_castps_si256(x), mask),
                                                _mm256_and_si256(_mm256_castps_si256(y), mask)));
}
inline Vec max_magnitude(Vec x, Vec y) { return {max_magnitude_half(x.a, y.a), max_magnitude_half(x.b, y.b)}; }

struct Ints {
    __m256i a, b;
};
inline Ints zeros() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline Ints load_pairs(const int32_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
inline Ints splat_pair(int32_t pair) { return {_mm256_set1_epi32(pair), _mm256_set1_epi32(pair)}; }
inline Ints add_products(Ints sums, Ints x, Ints y) {
    return {_mm256_add_epi32(sums.a, _mm256_madd_epi16(x.a, y.a)), _mm256_add_epi32(sums.b, _mm256_madd_epi16(x.b, y.b))};
}
inline Vec to_floats(Ints x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }

#else

struct Vec {
    float v[kLanes];
};
#define OUTRIDER_LANES(expression)               \
    Vec out;                                     \
    for (int i = 0; i < kLanes; ++i) out.v[i] = (expression); \
    return out
inline Vec load(const float* p) { OUTRIDER_LANES(p[i]); }
inline void store(float* p, const Vec& a) {
    for (int i = 0; i < kLanes; ++i) p[i] = a.v[i];
}
inline Vec splat(float x) { OUTRIDER_LANES(x); }
inline Vec operator+(const Vec& a, const Vec& b) { OUTRIDER_LANES(a.v[i] + b.v[i]); }
inline Vec operator-(const Vec& a, const Vec& b) { OUTRIDER_LANES(a.v[i] - b.v[i]); }
inline Vec operator*(const Vec& a, const Vec& b) { OUTRIDER_LANES(a.v[i] * b.v[i]); }
inline Vec operator/(const Vec& a, const Vec& b) { OUTRIDER_LANES(a.v[i] / b.v[i]); }
// Two roundings where the processor has no fused multiply-add: other bits than AVX2's, the same for every row.
inline Vec fma(const Vec& a, const Vec& b, const Vec& c) { OUTRIDER_LANES(a.v[i] * b.v[i] + c.v[i]); }
// One rounding (but once in 2^29), for what must be as elsewhere: at the edges of codes a last bit is seen.
inline Vec fused(const Vec& a, const Vec& b, const Vec& c) { OUTRIDER_LANES(float(double(a.v[i]) * b.v[i] + c.v[i])); }
inline Vec max(const Vec& a, const Vec& b) { OUTRIDER_LANES(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
inline Vec min(const Vec& a, const Vec& b) { OUTRIDER_LANES(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
inline Vec round_even(const Vec& a) { OUTRIDER_LANES(__builtin_rintf(a.v[i])); }
inline Vec load_half(const uint16_t* p) { OUTRIDER_LANES(half_to_float(p[i])); }
inline void store_half(uint16_t* p, const Vec& a) {
    for (int i = 0; i < kLanes; ++i) p[i] = float_to_half(a.v[i]);
}
inline Vec load_bfloat(const uint16_t* p) { OUTRIDER_LANES(bfloat_to_float(p[i])); }
inline void store_codes(int8_t* p, const Vec& a) {
    for (int i = 0; i < kLanes; ++i) p[i] = a.v[i] == a.v[i] ? int8_t(int32_t(a.v[i])) : int8_t(0);
}
inline void store_shorts(int16_t* p, const Vec& a) {
    for (int i = 0; i < kLanes; ++i) p[i] = a.v[i] == a.v[i] ? int16_t(__builtin_rintf(a.v[i])) : int16_t(0);
}
inline void store_pairs(int32_t* p, const Vec& low, const Vec& high) {
    int16_t codes[2][kLanes];
    store_shorts(codes[0], low);
    store_shorts(codes[1], high);
    for (int i = 0; i < kLanes; ++i) p[i] = int32_t(uint32_t(uint16_t(codes[1][i])) << 16 | uint16_t(codes[0][i]));
}
inline Vec add_exponent(const Vec& a, const Vec& b) {
    OUTRIDER_LANES(bits_to_float(float_to_bits(a.v[i]) + (float_to_bits(b.v[i]) << 23)));
}
inline Vec load_twice(const float* p) { OUTRIDER_LANES(p[i / 2]); }
inline Vec swap_pairs(const Vec& a) { OUTRIDER_LANES(a.v[i ^ 1]); }
inline Vec keep_first(const Vec& a, int count, float fill) { OUTRIDER_LANES(i < count ? a.v[i] : fill); }
inline float max_magnitude_lane(float a, float b) {
    const uint32_t x = float_to_bits(a) & 0x7fffffff, y = float_to_bits(b) & 0x7fffffff;
    return bits_to_float(x > y ? x : y);
}
inline Vec max_magnitude(const Vec& a, const Vec& b) { OUTRIDER_LANES(max_magnitude_lane(a.v[i], b.v[i])); }

struct Ints {
    int32_t v[kLanes];
};
inline Ints zeros() { return {}; }
inline Ints load_pairs(const int32_t* p) {
    Ints out;
    for (int i = 0; i < kLanes; ++i) out.v[i] = p[i];
    return out;
}
inline Ints splat_pair(int32_t pair) {
    Ints out;
    for (int i = 0; i < kLanes; ++i) out.v[i] = pair;
    return out;
}
// The sums wrap around, as in the other instruction sets: stale places of the cache may hold anything.
inline Ints add_products(Ints sums, const Ints& a, const Ints& b) {
    for (int i = 0; i < kLanes; ++i) {
        const int32_t low = int16_t(a.v[i]) * int16_t(b.v[i]), high = (a.v[i] >> 16) * (b.v[i] >> 16);
        sums.v[i] = int32_t(uint32_t(sums.v[i]) + uint32_t(low) + uint32_t(high));
    }
    return sums;
}
inline Vec to_floats(const Ints& a) { OUTRIDER_LANES(float(a.v[i])); }
#undef OUTRIDER_LANES

#endif

// Calls f with `count`, 1 to kMost, as a compile-time constant.
template <int kMost, class F>
inline void with_count(int count, F f) {
    if constexpr (kMost > 1) {
        if (count < kMost) return with_count<kMost - 1>(count, f);
    }
    f(std::integral_constant<int, kMost>());
}

// Reductions pair lanes i and i + 8, then + 4, + 2, + 1, everywhere.
#if defined(__AVX2__)
#if defined(__AVX512F__)
inline __m256 low_half(Vec a) { return _mm512_castps512_ps256(a.v); }
inline __m256 high_half(Vec a) { return _mm512_extractf32x8_ps(a.v, 1); }
#else
inline __m256 low_half(Vec x) { return x.a; }
inline __m256 high_half(Vec x) { return x.b; }
#endif
template <class Wide, class Narrow>
inline float reduce(Vec a, Wide wide, Narrow narrow) {
    const __m256 half = wide(low_half(a), high_half(a));
    __m128 quarter = narrow(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    quarter = narrow(quarter, _mm_movehl_ps(quarter, quarter));
    quarter = narrow(quarter, _mm_movehdup_ps(quarter));
    return _mm_cvtss_f32(quarter);
}
inline float sum(Vec a) {
    return reduce(a, [](__m256 x, __m256 y) { return _mm256_add_ps(x, y); },
                  [](__m128 x, __m128 y) { return _mm_add_ps(x, y); });
}
inline float largest(Vec a) {
    return reduce(a, [](__m256 x, __m256 y) { return _mm256_max_ps(x, y); },
                  [](__m128 x, __m128 y) { return _mm_max_ps(x, y); });
}
// The largest lane of each of four.
inline __m128 largest_of_four(Vec a, Vec b, Vec c, Vec d) {
    const auto halves = [](Vec x) { return _mm256_max_ps(low_half(x), high_half(x)); };
    const auto interleaved = [](__m256 x, __m256 y) {
        return _mm256_max_ps(_mm256_unpacklo_ps(x, y), _mm256_unpackhi_ps(x, y));
    };
    const __m256 ab = interleaved(halves(a), halves(b)), cd = interleaved(halves(c), halves(d));
    const __m256 all = _mm256_max_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
    return _mm_max_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
}
inline Vec four_quarters(const __m128* q) {
    const __m256 a = _mm256_insertf128_ps(_mm256_castps128_ps256(q[0]), q[1], 1);
    const __m256 b = _mm256_insertf128_ps(_mm256_castps128_ps256(q[2]), q[3], 1);
#if defined(__AVX512F__)
    return {_mm512_insertf32x8(_mm512_castps256_ps512(a), b, 1)};
#else
    return {a, b};
#endif
}
// In lane j the largest lane of a[j], for N <= 16; the other lanes repeat some of these.
template <int N>
inline Vec largest_of_each(const Vec* a) {
    __m128 quarters[4];
    for (int q = 0; q < 4; ++q) {
        const auto at = [&](int i) { return a[4 * q + i < N ? 4 * q + i : N - 1]; };
        quarters[q] = 4 * q < N ? largest_of_four(at(0), at(1), at(2), at(3)) : quarters[0];
    }
    return four_quarters(quarters);
}
// The lanes are magnitudes; see max_magnitude.
inline float largest_magnitude(Vec a) {
    return reduce(
        a,
        [](__m256 x, __m256 y) {
            return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(x), _mm256_castps_si256(y)));
        },
        [](__m128 x, __m128 y) { return _mm_castsi128_ps(_mm_max_epi32(_mm_castps_si128(x), _mm_castps_si128(y))); });
}
#else
template <class Combine>
inline float reduce(Vec a, Combine combine) {
    for (int width = 8; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) a.v[i] = combine(a.v[i], a.v[i + width]);
    return a.v[0];
}
inline float sum(const Vec& a) {
    return reduce(a, [](float x, float y) { return x + y; });
}
inline float largest(const Vec& a) {
    return reduce(a, [](float x, float y) { return x > y ? x : y; });
}
inline float largest_magnitude(const Vec& a) { return reduce(a, max_magnitude_lane); }
template <int N>
inline Vec largest_of_each(const Vec* a) {
    Vec out = {};
    for (int j = 0; j < N; ++j) out.v[j] = largest(a[j]);
    return out;
}
#endif

// Into all caches, or, for what is used once and then not for a whole pass, into the nearest one only.
inline void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }
inline void prefetch_soon(const void* p) { __builtin_prefetch(p, 0, 2); }
inline void prefetch_once(const void* p) { __builtin_prefetch(p, 0, 0); }

// Whether weights are better streamed past the larger caches: through them they would throw out the activations, the KV
// cache and the Python interpreter each time. On Intel's processors what passes them comes through the few buffers of
// the first cache alone, which takes three times as long.
inline bool streams_past_caches() {
#if defined(__x86_64__)
    static const bool intel = __builtin_cpu_is("intel");
    return !intel;
#else
    return true;
#endif
}

// 2^x for x <= 127, about 1 unit in the last place; below -126 it is 2^-126; NaN stays NaN unless it has a payload.
// x = n + r with |r| <= 1/2: adding 1.5 2^23 leaves n in the lowest bits. 2^r by the polynomial of degree 5 that is 1 at
// 0 and otherwise has the least relative error, 9e-8.
inline Vec exp2(Vec x) {
    const Vec magic = splat(12582912.0f), clamped = max(splat(-126.0f), x);  // operand order: a NaN in x comes through
    const Vec shifted = clamped + magic, r = clamped - (shifted - magic);
    Vec p = splat(1.326472731307149e-3f);
    p = fused(p, r, splat(9.671512991189957e-3f));
    p = fused(p, r, splat(5.550733581185341e-2f));
    p = fused(p, r, splat(2.4022242426872253e-1f));
    p = fused(p, r, splat(6.931470036506653e-1f));
    p = fused(p, r, splat(1.0f));
    return add_exponent(p, shifted);
}

}  // namespace
}  // namespace outrider
