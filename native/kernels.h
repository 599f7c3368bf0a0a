// What a kernel works on, and the table of kernels that each instruction set fills in.
//
// Row invariance: a kernel computes each row by the same operations in the same order whatever other rows are in the
// pass and whichever thread runs it. The linear kernels block over rows only to reuse loaded weights.
#pragma once

#include <cstddef>
#include <cstdint>

#include "half.h"

namespace outrider {

constexpr int kTile = 16;      // outputs that are stored, and computed, together
constexpr int kGroup = 32;     // inputs that share a scale
constexpr int kRowBlock = 8;   // rows whose quantised activations are interleaved
constexpr int kKvBlock = 32;   // positions in a block of the KV cache, and in a chunk of the attention's sum
constexpr int kMaximum = 32;   // columns of the logits that share one maximum
constexpr int kSegment = 256;  // positions whose partial attention may be computed apart
constexpr int kKvRun = kSegment / kKvBlock;  // blocks of the KV cache that lie side by side
constexpr int kRunRows = 8;    // rows of a request whose attention is computed together, at most
constexpr size_t kFetchAhead = 8192;  // bytes between the weights that are computed and those that are fetched

// How a weight is stored once packed. All quantised ones mean  w = scale * (code - offset) + minimum  per group.
enum class Format : int32_t {
    kQ4 = 0,     // codes 0..15, offset 8, no minimum                (Q4_0)
    kQ4Min = 1,  // codes 0..15, offset 0, with minimum              (Q4_1)
    kQ8 = 2,     // codes -128..127, offset 0, no minimum            (Q8_0)
    kF32 = 3,
    kF16 = 4,
    kBF16 = 5,
};

OUTRIDER_INLINE bool is_quantised(Format format) { return format <= Format::kQ8; }

// Bytes of one tile's group: codes, then 16 half-precision scales, then 16 minimums if any.
OUTRIDER_INLINE size_t group_bytes(Format format) {
    switch (format) {
        case Format::kQ4: return 256 + 32;
        case Format::kQ4Min: return 256 + 64;
        case Format::kQ8: return 512 + 32;
        default: return 0;
    }
}

// Bytes of one tile of 16 outputs over `inputs` inputs.
OUTRIDER_INLINE size_t tile_bytes(Format format, int inputs) {
    if (is_quantised(format)) return size_t(inputs / kGroup) * group_bytes(format);
    return size_t(inputs) * kTile * (format == Format::kF32 ? 4 : 2);
}

// A packed weight: tiles of 16 outputs, one after another; the last is padded with zeros.
//   4-bit codes:  [tile][group][step of 8 inputs][output][4]  low nibbles: inputs 0..3 of the step, high: inputs 4..7
//   8-bit codes:  [tile][group][step of 4 inputs][output][4]
//   floats:       [tile][input][output]
struct Weight {
    Format format;
    int outputs;
    int inputs;
    const uint8_t* data;

    OUTRIDER_INLINE int tiles() const { return (outputs + kTile - 1) / kTile; }
    OUTRIDER_INLINE const uint8_t* tile(int index) const { return data + size_t(index) * tile_bytes(format, inputs); }
};

// What a float's bits count from when integers are added to them: 1.5 2^23.
constexpr int32_t kOneAndAHalf = 0x4b400000;
constexpr float kCounted = 12582912.0f;

// Rows of activations as int8, quantised per row and group of 32 as x = scale * code with scale = max|x| / 127, its two
// last bits cleared, so that `zero`, -kCounted * scale, is exact.
// Rows are interleaved in blocks of 8; the last block has the rows that are left, w of them. All that belongs to a group
// of a block lies together, so that two threads that make neighbouring groups share one line at most:
//   [row / 8][group]: codes [step of 4 inputs][w][4], then scales, zeros, scaled_sums (scale * sum), sums (of codes) [w]
struct Quantised {
    static constexpr int kBytes = kGroup + 16;  // of a row's group

    int8_t* data;
    int rows;

    // Rows of the block that `row` is in.
    OUTRIDER_INLINE int block_rows(int row) const {
        const int left = rows - row / kRowBlock * kRowBlock;
        return left < kRowBlock ? left : kRowBlock;
    }
    // The block's group, of so many of each row.
    OUTRIDER_INLINE int8_t* at(int row, int group, int groups) const {
        const size_t before = size_t(row / kRowBlock) * kRowBlock * groups + size_t(group) * block_rows(row);
        return data + before * kBytes;
    }
    // What stands behind the codes of a group of w rows.
    OUTRIDER_INLINE static float* scales(int8_t* group, int w) { return reinterpret_cast<float*>(group + kGroup * w); }
    OUTRIDER_INLINE static float* zeros(int8_t* group, int w) { return scales(group, w) + w; }
    OUTRIDER_INLINE static float* scaled_sums(int8_t* group, int w) { return scales(group, w) + 2 * w; }
    OUTRIDER_INLINE static int32_t* sums(int8_t* group, int w) {
        return reinterpret_cast<int32_t*>(scales(group, w) + 3 * w);
    }
};

// A float matrix [rows][stride].
struct Matrix {
    float* data;
    int stride;

    OUTRIDER_INLINE float* row(int index) const { return data + size_t(index) * stride; }
};

// y[rows][first_output..] = x W^T (+ bias) (+ residual), for the tiles [tile_begin, tile_end) of W.
struct LinearTask {
    const Weight* weight;
    const float* bias;  // [outputs] or null
    Matrix x;           // read by float formats
    Quantised xq;       // read by quantised formats
    Matrix residual;    // data may be null
    Matrix y;
    int first_output;   // column of y (and residual) of the weight's output 0
    int rows;
    const uint8_t* next;  // what this thread will read after the tiles, or null
};

// The KV cache of one layer: 16-bit codes with a scale per key and per value, which attention multiplies as integers.
// Pairs that are multiplied together share a word. Inside a block and head:
//   keys    [head_dim / 2][32]  codes 2d and 2d + 1 of a position
//   values  [16][head_dim]      code d of the positions t and t + 16
//   scales  [2][32]             of keys, then of values
// Eight blocks of a head lie side by side, then come the other heads, and at last the other layers: what a thread reads
// of a text whose blocks follow one another is in order, and a short text touches little memory.
struct KvLayer {
    int32_t* words;      // of the layer in the first eight blocks
    size_t run_words;    // of all layers in eight blocks
    int heads;
    int head_dim;

    OUTRIDER_INLINE static size_t block_words(int head_dim) { return size_t(head_dim + 2) * kKvBlock; }
    OUTRIDER_INLINE int32_t* at(int block, int head) const {
        return words + block / kKvRun * run_words + size_t(head * kKvRun + block % kKvRun) * block_words(head_dim);
    }
};

// One block and head of it.
struct KvBlock {
    int32_t* keys;
    int32_t* values;
    float* scales;

    OUTRIDER_INLINE KvBlock(int32_t* words, int head_dim)
        : keys(words),
          values(words + head_dim * (kKvBlock / 2)),
          scales(reinterpret_cast<float*>(words + head_dim * kKvBlock)) {}
};

// Where the rows of a pass live: the arrays of outrider.types.Rows.
struct RowMap {
    const int32_t* positions;
    const int32_t* slots;
    const int32_t* requests;
    const int32_t* tables;  // [requests][table_stride]
    int table_stride;
    const int32_t* tail_starts;
    const int32_t* tail_offsets;
    const int32_t* tail_slots;
};

// A run of rows of one request, which share its block table up to their tails.
struct AttentionTask {
    KvLayer kv;
    const RowMap* map;
    const int32_t* query_codes;  // of the rows' queries of this key head: see Queries
    const float* query_scales;
    Matrix out;  // [rows][heads * head_dim]
    int heads;   // query heads
    int row_begin, row_end;
    int kv_head;
    int segment_begin, segment_end;
    int next_block, next_head;  // what this thread will read next
    float* partial;  // null: write `out`; else the state of segment_begin is left here: see attention_state_size
    float* scratch;  // attention_scratch_size floats of this thread
};

// Floats of the softmax state of one row and query head: 16 lanes of the sum, weighted values, maximum (and 15 unused).
OUTRIDER_INLINE size_t attention_state_size(int head_dim) { return 16 + size_t(head_dim) + 16; }
// Places for as many numbers, which may be read 16 at a time from any of them.
OUTRIDER_INLINE int padded_lanes(int count) { return (count + 31) / 16 * 16; }
// Words of scratch for a run: of each (row, query head) two states, maximum and reach; keys and values of a chunk.
OUTRIDER_INLINE size_t attention_scratch_size(int head_dim, int queries) {
    return size_t(queries) * 2 * attention_state_size(head_dim) + 2 * size_t(padded_lanes(queries)) +
           KvLayer::block_words(head_dim);
}

struct Kernels {
    const char* name;
    void (*linear)(const LinearTask&, int tile_begin, int tile_end);
    void (*quantise)(Matrix x, Quantised out, int inputs, int row_begin, int row_end, int column_begin, int column_end);
    void (*rms_norm)(Matrix x, const float* weight, float epsilon, Matrix y, int width, int row_begin, int row_end,
                     int column_begin, int column_end);
    void (*rotate)(Matrix x, Matrix angles, int pairs, bool interleaved, int head_dim, Matrix y, int row_begin,
                   int row_end, int column_begin, int column_end);
    void (*swiglu)(Matrix gate_up, Matrix y, int width, int row_begin, int row_end, int column_begin, int column_end);
    void (*maxima)(Matrix x, Matrix y, int row_begin, int row_end, int column_begin, int column_end);
    void (*embed)(const Weight&, const int32_t* tokens, Matrix y, int row_begin, int row_end, int column_begin,
                  int column_end);
    void (*write_kv)(const KvLayer&, const RowMap&, Matrix k, Matrix v, int row_begin, int row_end, int head_begin,
                     int head_end);
    float (*encode_query)(const float* q, int head_dim, float scale, int32_t* codes, int stride);
    void (*attention)(const AttentionTask&);
    void (*merge_attention)(const AttentionTask&, float* states, int segments, int row, int query_head);
};

extern const Kernels kPlainKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

// The kernels of that name ("plain", "avx2", "avx512vnni"), or null where this processor cannot run them.
const Kernels* find_kernels(const char* name);
// The fastest that this processor can run.
const Kernels& best_kernels();

}  // namespace outrider
