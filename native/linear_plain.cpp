// Linear layers in plain C++, for any processor: the same integer sums as the other files, left to the compiler.
#include "attention.h"
#include "linear.h"

namespace outrider {
namespace {

struct PlainLinear {
    template <Format kFormat>
    static void run(const LinearTask& task, int tile_begin, int tile_end) {
        constexpr bool kEight = kFormat == Format::kQ8;
        constexpr int kOffset = kFormat == Format::kQ4 ? 8 : 0;
        constexpr size_t kCodes = kEight ? 512 : 256;
        const int groups = task.weight->inputs / kGroup;
        for_row_blocks<1>(task, tile_begin, tile_end, [&](const uint8_t* data, int row, int, Vec* acc) {
            const int lane = row % kRowBlock, block_rows = task.xq.block_rows(row);
            acc[0] = splat(0);
            for (int g = 0; g < groups; ++g, data += group_bytes(kFormat)) {
                int8_t* group = task.xq.at(row, g, groups);
                const int8_t* x = group + lane * 4;
                int32_t dot[kTile];
                for (int o = 0; o < kTile; ++o) dot[o] = -kOffset * Quantised::sums(group, block_rows)[lane];
                for (int s = 0; s < 8; ++s) {
                    const int8_t* xs = x + s * 4 * block_rows;
                    const uint8_t* codes = data + (kEight ? s : s / 2) * 64;
                    for (int o = 0; o < kTile; ++o) {
                        for (int i = 0; i < 4; ++i) {
                            const uint8_t byte = codes[o * 4 + i];
                            const int code = kEight ? int8_t(byte) : s % 2 ? byte >> 4 : byte & 15;
                            dot[o] += code * xs[i];
                        }
                    }
                }
                Vec products;
                for (int o = 0; o < kTile; ++o) products.v[o] = float(dot[o]);
                const auto* scales = reinterpret_cast<const uint16_t*>(data + kCodes);
                acc[0] = fma(products * splat(Quantised::scales(group, block_rows)[lane]), load_half(scales), acc[0]);
                if constexpr (kFormat == Format::kQ4Min)
                    acc[0] = fma(load_half(scales + kTile), splat(Quantised::scaled_sums(group, block_rows)[lane]), acc[0]);
            }
        });
    }
};

}  // namespace

extern const Kernels kPlainKernels;
const Kernels kPlainKernels = {"plain", linear<PlainLinear>, quantise, rms_norm, rotate, swiglu, maxima,
                               embed,   write_kv, encode_query, attention, merge_attention};

}  // namespace outrider
