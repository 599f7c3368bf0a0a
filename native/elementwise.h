// The operations on single rows and their columns, written once on simd.h's Vec.
//
// Each works on a range of rows and columns, so that a pass of one row can still be shared by all threads.
#pragma once

#include <cstring>

#include "kernels.h"
#include "simd.h"

namespace outrider {
namespace {

// Columns come in multiples of 16 except for a last odd end, which these helpers read and write lane by lane.
inline Vec load_columns(const float* p, int count) {
    if (count >= kLanes) return load(p);
    float lanes[kLanes] = {};
    for (int i = 0; i < count; ++i) lanes[i] = p[i];
    return load(lanes);
}
inline void store_columns(float* p, Vec x, int count) {
    if (count >= kLanes) return store(p, x);
    float lanes[kLanes];
    store(lanes, x);
    for (int i = 0; i < count; ++i) p[i] = lanes[i];
}

// y = x / sqrt(mean(x^2) + epsilon) * weight. The mean is taken over the whole row by every caller.
inline void rms_norm(Matrix x, const float* weight, float epsilon, Matrix y, int width, int row_begin, int row_end,
                     int column_begin, int column_end) {
    for (int row = row_begin; row < row_end; ++row) {
        const float* in = x.row(row);
        float* out = y.row(row);
        Vec squares = splat(0);
        for (int c = 0; c < width; c += kLanes) {
            const Vec a = load_columns(in + c, width - c);
            squares = fma(a, a, squares);
        }
        const Vec factor = splat(1.0f / __builtin_sqrtf(sum(squares) / float(width) + epsilon));
        for (int c = column_begin; c < column_end; c += kLanes) {
            const int count = column_end - c;
            store_columns(out + c, load_columns(in + c, count) * factor * load_columns(weight + c, count), count);
        }
    }
}

// Rotary embedding of the heads in columns [column_begin, column_end): of each, `pairs` pairs of lanes are turned by
// the row's angles (cosines, then sines), lanes (2i, 2i + 1) if interleaved, otherwise (i, i + pairs). The others pass
// through.
inline void rotate(Matrix x, Matrix angles, int pairs, bool interleaved, int head_dim, Matrix y, int row_begin,
                   int row_end, int column_begin, int column_end) {
    alignas(64) float signs[kLanes];
    for (int i = 0; i < kLanes; ++i) signs[i] = i % 2 ? 1.0f : -1.0f;
    const Vec alternating = load(signs);
    for (int row = row_begin; row < row_end; ++row) {
        const float *cosines = angles.row(row), *sines = cosines + pairs;
        for (int head = column_begin; head < column_end; head += head_dim) {
            const float* from = x.row(row) + head;
            float* to = y.row(row) + head;
            int i = 0;
            if (interleaved) {
                for (; i + kLanes / 2 <= pairs; i += kLanes / 2) {
                    const Vec a = load(from + 2 * i), turned = swap_pairs(a) * (load_twice(sines + i) * alternating);
                    store(to + 2 * i, a * load_twice(cosines + i) + turned);
                }
            } else {
                for (; i + kLanes <= pairs; i += kLanes) {
                    const Vec a = load(from + i), b = load(from + pairs + i), c = load(cosines + i), s = load(sines + i);
                    store(to + i, a * c - b * s);
                    store(to + pairs + i, a * s + b * c);
                }
            }
            for (; i < pairs; ++i) {
                const int low = interleaved ? 2 * i : i, high = interleaved ? 2 * i + 1 : i + pairs;
                const float a = from[low], b = from[high];
                to[low] = a * cosines[i] - b * sines[i];
                to[high] = a * sines[i] + b * cosines[i];
            }
            for (i = 2 * pairs; i < head_dim; ++i) to[i] = from[i];
        }
    }
}

// y = silu(gate) * up with silu(g) = g / (1 + e^-g); gate_up holds the gates in columns [0, width), then the ups.
// Where e^-g would be more than 2^126, it is that.
inline void swiglu(Matrix gate_up, Matrix y, int width, int row_begin, int row_end, int column_begin, int column_end) {
    for (int row = row_begin; row < row_end; ++row) {
        const float* gates = gate_up.row(row);
        const float* ups = gates + width;
        for (int c = column_begin; c < column_end; c += kLanes) {
            const int count = column_end - c;
            const Vec gate = load_columns(gates + c, count);
            const Vec power = min(splat(126), gate * splat(-1.44269504f));  // operand order: a NaN comes through
            const Vec silu = gate / (splat(1) + exp2(power));
            store_columns(y.row(row) + c, silu * load_columns(ups + c, count), count);
        }
    }
}

// y[row][b] = the largest of x's columns [32 b, 32 b + 32), NaN if one of them is.
inline void maxima(Matrix x, Matrix y, int row_begin, int row_end, int column_begin, int column_end) {
    constexpr float kNothing = -__builtin_inff();
    for (int row = row_begin; row < row_end; ++row) {
        const float* in = x.row(row);
        for (int c = column_begin; c < column_end; c += kMaximum) {
            const int count = column_end - c;
            const Vec low = keep_first(load_columns(in + c, count), count, kNothing);
            const Vec high = keep_first(load_columns(in + c + kLanes, count - kLanes), count - kLanes, kNothing);
            const float magnitude = largest_magnitude(max_magnitude(low, high));  // it alone keeps a NaN
            y.row(row)[c / kMaximum] = magnitude == magnitude ? largest(max(low, high)) : magnitude;
        }
    }
}

// A group of numbers no larger than this counts as zero: 127 / magnitude must be finite.
constexpr float kSmallest = 1e-36f;

// Symmetric int8 codes per row and group of 32; columns are whole groups. A NaN or infinity makes the scale NaN or
// infinite, so that it reaches every output of the row.
inline void quantise(Matrix x, Quantised out, int inputs, int row_begin, int row_end, int column_begin,
                     int column_end) {
    const int groups = inputs / kGroup;
    for (int row = row_begin; row < row_end; ++row) {
        const int lane = row % kRowBlock, block_rows = out.block_rows(row);
        for (int g = column_begin / kGroup; g < column_end / kGroup; ++g) {
            const float* in = x.row(row) + g * kGroup;
            const Vec low = load(in), high = load(in + kLanes);
            const float magnitude = largest_magnitude(max_magnitude(low, high));
            const float scale = bits_to_float(float_to_bits(magnitude / 127.0f) & ~3u);
            const Vec inverse = splat(magnitude > kSmallest ? 127.0f / magnitude : 0.0f);
            const Vec first = round_even(low * inverse), second = round_even(high * inverse);
            const float total = sum(first + second);  // whole numbers: exact
            int8_t codes[kGroup];
            store_codes(codes, first);
            store_codes(codes + kLanes, second);

            int8_t* to = out.at(row, g, groups);
            for (int step = 0; step < kGroup / 4; ++step)
                std::memcpy(to + (step * block_rows + lane) * 4, codes + step * 4, 4);
            Quantised::scales(to, block_rows)[lane] = scale;
            Quantised::zeros(to, block_rows)[lane] = -kCounted * scale;
            Quantised::scaled_sums(to, block_rows)[lane] = scale * total;
            Quantised::sums(to, block_rows)[lane] = total == total ? int32_t(total) : 0;
        }
    }
}

// y[row] = the weight's output `tokens[row]`, as floats.
inline void embed(const Weight& weight, const int32_t* tokens, Matrix y, int row_begin, int row_end, int column_begin,
                  int column_end) {
    for (int row = row_begin; row < row_end; ++row) {
        const uint8_t* tile = weight.tile(tokens[row] / kTile);
        const int output = tokens[row] % kTile;
        float* out = y.row(row);
        for (int c = column_begin; c < column_end; ++c) {
            switch (weight.format) {
                case Format::kF32: out[c] = reinterpret_cast<const float*>(tile)[c * kTile + output]; break;
                case Format::kF16:
                    out[c] = half_to_float(reinterpret_cast<const uint16_t*>(tile)[c * kTile + output]);
                    break;
                case Format::kBF16:
                    out[c] = bfloat_to_float(reinterpret_cast<const uint16_t*>(tile)[c * kTile + output]);
                    break;
                default: {
                    const uint8_t* group = tile + size_t(c / kGroup) * group_bytes(weight.format);
                    const int i = c % kGroup;
                    if (weight.format == Format::kQ8) {
                        const int8_t code = int8_t(group[i / 4 * 64 + output * 4 + i % 4]);
                        const auto* scales = reinterpret_cast<const uint16_t*>(group + 512);
                        out[c] = half_to_float(scales[output]) * float(code);
                    } else {
                        const uint8_t byte = group[i / 8 * 64 + output * 4 + i % 4];
                        const int code = i % 8 < 4 ? byte & 15 : byte >> 4;
                        const auto* scales = reinterpret_cast<const uint16_t*>(group + 256);
                        const float scale = half_to_float(scales[output]);
                        out[c] = weight.format == Format::kQ4 ? scale * float(code - 8)
                                                              : scale * float(code) + half_to_float(scales[16 + output]);
                    }
                }
            }
        }
    }
}

}  // namespace
}  // namespace outrider
