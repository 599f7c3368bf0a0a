// What this machine can do at most: read bandwidth, and 8-bit multiply-adds with the instruction that the kernels use.
// Compiled and called by kernels.py; x86-64 only.
#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace {

template <class Work>
double seconds(int threads, Work work) {
    double best = 1e9;
    for (int repeat = 0; repeat < 7; ++repeat) {
        const auto start = std::chrono::steady_clock::now();
        std::vector<std::thread> team;
        for (int i = 0; i < threads; ++i) team.emplace_back(work, i);
        for (std::thread& thread : team) thread.join();
        best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return best;
}

constexpr long kRounds = 4'000'000;  // of 16 (AVX-512) or 12 (AVX2) independent instructions

__attribute__((target("avx512f,avx512vnni"))) void dot_products() {
    __m512i sums[16] = {}, codes = _mm512_set1_epi8(3), x = _mm512_set1_epi8(5);
    for (long i = 0; i < kRounds; ++i) {
#pragma GCC unroll 16
        for (int j = 0; j < 16; ++j) sums[j] = _mm512_dpbusd_epi32(sums[j], codes, x);
#pragma GCC unroll 16
        for (int j = 0; j < 16; ++j) asm volatile("" : "+v"(sums[j]));
    }
}

__attribute__((target("avx2"))) void multiply_pairs() {
    __m256i products[12], codes = _mm256_set1_epi8(3);
#pragma GCC unroll 16
    for (int j = 0; j < 12; ++j) products[j] = _mm256_set1_epi8(5);
    for (long i = 0; i < kRounds; ++i) {
#pragma GCC unroll 16
        for (int j = 0; j < 12; ++j) products[j] = _mm256_maddubs_epi16(codes, products[j]);
#pragma GCC unroll 16
        for (int j = 0; j < 12; ++j) asm volatile("" : "+x"(products[j]));
    }
}

}  // namespace

// Bytes per second that all threads together read, each its own stretch of `bytes` in all.
extern "C" double read_bandwidth(int threads, size_t bytes) {
    auto* data = static_cast<char*>(std::aligned_alloc(4096, bytes));
    std::memset(data, 1, bytes);
    const size_t part = bytes / threads / 256 * 256;
    const double time = seconds(threads, [=](int i) {
        const char* from = data + part * i;
        long long sum = 0;
        for (size_t at = 0; at < part; at += 64) sum += *reinterpret_cast<const long long*>(from + at);
        volatile long long sink = sum;
        (void)sink;
    });
    std::free(data);
    return part * threads / time;
}

// 8-bit multiply-adds per second of all threads together.
extern "C" double multiply_adds(int threads, bool avx512) {
    const double time = seconds(threads, [=](int) { avx512 ? dot_products() : multiply_pairs(); });
    return threads * double(kRounds) * (avx512 ? 16 * 64 : 12 * 32) / time;
}
