#include "executor.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <stdexcept>
#include <string>

namespace outrider {
namespace {

// The part of [0, width) that a thread owns, in whole units.
std::pair<int, int> share(int width, int unit, int thread, int threads) {
    const int units = (width + unit - 1) / unit;
    const int begin = units * thread / threads * unit, end = units * (thread + 1) / threads * unit;
    return {std::min(begin, width), std::min(end, width)};
}

void require(bool condition, const std::string& message) {
    if (!condition) throw std::invalid_argument(message);
}

}  // namespace

int Executor::buffer(int width, bool wanted) {
    require(width > 0, "a buffer needs a positive width");
    buffers_.push_back({.width = width, .wanted = wanted, .memory = {}});
    return int(buffers_.size()) - 1;
}

Matrix Executor::matrix(int buffer) const {
    const Buffer& b = buffers_[size_t(buffer)];
    return {b.memory.data(), b.width};
}

void Executor::record(const char* name, std::function<void(int)> work, Columns columns, bool reads_own_columns) {
    const bool own = reads_own_columns && columns == last_columns_ && !operations_.empty();
    operations_.push_back({name, std::move(work), !own});
    last_columns_ = columns;
}

void Executor::record_columns(const char* name, int width, int unit, bool wanted, bool reads_own_columns,
                              std::function<void(int, int, int)> work) {
    record(
        name,
        [this, width, unit, wanted, work = std::move(work)](int thread) {
            const auto [begin, end] = share(width, unit, thread, team_->size());
            if (begin < end) work(rows_of(wanted), begin, end);
        },
        {width, unit}, reads_own_columns);
}

int Executor::counter() {
    counters_.push_back(std::make_unique<std::atomic<int>>(0));
    return int(counters_.size()) - 1;
}

void Executor::embed(const PackedWeight& weight, int out) {
    const Weight w = weight.view();
    vocabulary_ = w.outputs;
    require(width(out) == w.inputs, "embed: the buffer's width is not the embedding's");
    writes(out);
    record_columns("embed", w.inputs, kGroup, false, false, [this, w, out](int rows, int begin, int end) {
        kernels_.embed(w, pass_.tokens, matrix(out), 0, rows, begin, end);
    });
}

void Executor::rms_norm(int x, std::vector<float> weight, float epsilon, int out) {
    require(width(x) == int(weight.size()) && width(x) == width(out), "rms_norm: widths differ");
    writes(out);
    record_columns("rms_norm", width(x), kGroup, buffers_[size_t(x)].wanted, false,
                   [this, x, weight = std::move(weight), epsilon, out](int rows, int begin, int end) {
                       kernels_.rms_norm(matrix(x), weight.data(), epsilon, matrix(out), int(weight.size()), 0, rows,
                                         begin, end);
                   });
}

// The quantised form of what buffer x holds now, made once for all its readers.
int Executor::quantise(int x) {
    Buffer& b = buffers_[size_t(x)];
    if (b.fresh) return b.quantised;
    b.fresh = true;
    if (b.quantised < 0) {
        b.quantised = int(quantised_.size());
        quantised_.push_back(std::make_unique<QuantisedBuffer>());
        quantised_.back()->width = b.width;
        quantised_.back()->wanted = b.wanted;
    }
    QuantisedBuffer* q = quantised_[size_t(b.quantised)].get();
    record_columns("quantise", b.width, kGroup, b.wanted, true, [this, x, q](int rows, int begin, int end) {
        kernels_.quantise(matrix(x), q->view(), q->width, 0, rows, begin, end);
    });
    return b.quantised;
}

void Executor::linear(int x, std::vector<const PackedWeight*> weights, std::vector<float> bias, int residual,
                      int out) {
    int outputs = 0, total_tiles = 0, quantised = -1;
    struct Part {
        Weight weight;
        int first_output, first_tile;
    };
    std::vector<Part> parts;
    for (const PackedWeight* packed : weights) {
        const Weight& w = packed->view();
        require(w.inputs == width(x), "linear: the weight's inputs are not the buffer's width");
        if (is_quantised(w.format)) quantised = quantise(x);
        parts.push_back({w, outputs, total_tiles});
        outputs += w.outputs;
        total_tiles += w.tiles();
    }
    require(outputs == width(out), "linear: the weights' outputs are not the buffer's width");
    require(bias.empty() || int(bias.size()) == outputs, "linear: the bias's length is not the outputs'");
    writes(out);
    const int next = counter();
    const bool wanted = buffers_[size_t(x)].wanted;
    record("linear", [=, this, parts = std::move(parts), bias = std::move(bias)](int thread) {
        const auto compute = [&](int begin, int end) {
            for (const Part& part : parts) {
                const int first = std::max(begin - part.first_tile, 0);
                const int last = std::min(end - part.first_tile, part.weight.tiles());
                if (first >= last) continue;
                LinearTask task = {};
                task.weight = &part.weight;
                task.bias = bias.empty() ? nullptr : bias.data() + part.first_output;
                task.x = matrix(x);
                if (quantised >= 0) task.xq = quantised_[size_t(quantised)]->view();
                if (residual >= 0) task.residual = matrix(residual);
                task.y = matrix(out);
                task.first_output = part.first_output;
                task.rows = rows_of(wanted);
                kernels_.linear(task, first, last);
            }
        };
        // Three quarters are split evenly, so that each thread streams its own stretch of weights; the rest goes
        // to whoever comes first, which evens out a processor that is slower or disturbed.
        const int threads = team_->size();
        const int even = threads == 1 ? total_tiles : total_tiles * 3 / 4;
        compute(even * thread / threads, even * (thread + 1) / threads);
        const int left = total_tiles - even, pieces = std::min(left, 8 * threads);
        for (int piece; (piece = counters_[size_t(next)]->fetch_add(1, std::memory_order_relaxed)) < pieces;)
            compute(even + left * piece / pieces, even + left * (piece + 1) / pieces);
    }, {0, 0}, false);
}

void Executor::angles(std::vector<double> frequencies, int out) {
    const int half = int(frequencies.size());
    require(width(out) == 2 * half, "angles: the buffer must hold a cosine and a sine per frequency");
    writes(out);
    record_columns("angles", half, 4, false, false,
                   [this, out, half, frequencies = std::move(frequencies)](int rows, int begin, int end) {
                       for (int row = 0; row < rows; ++row) {
                           float* to = matrix(out).row(row);
                           for (int i = begin; i < end; ++i) {
                               const double angle = double(pass_.map.positions[row]) * frequencies[size_t(i)];
                               to[i] = float(std::cos(angle));
                               to[half + i] = float(std::sin(angle));
                           }
                       }
                   });
}

void Executor::rope(int x, int angles, int heads, int head_dim, bool interleaved, int out) {
    require(heads * head_dim == width(out) && heads * head_dim <= width(x), "rope: widths do not hold the heads");
    const int half = head_dim / 2, rotated = width(angles) / 2;
    require(rotated <= half, "rope: more frequencies than pairs in a head");
    writes(out);
    record_columns("rope", heads * head_dim, head_dim, false, false, [=, this](int rows, int begin, int end) {
        for (int row = 0; row < rows; ++row) {
            const float* cosines = matrix(angles).row(row);
            const float* sines = cosines + rotated;
            for (int at = begin; at < end; at += head_dim) {
                const float* from = matrix(x).row(row) + at;
                float* to = matrix(out).row(row) + at;
                // Lanes past the rotated ones (a partial rotary embedding) pass through.
                for (int i = 2 * rotated; i < head_dim; ++i) to[i] = from[i];
                for (int i = 0; i < rotated; ++i) {
                    const int a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + rotated;
                    to[a] = from[a] * cosines[i] - from[b] * sines[i];
                    to[b] = from[a] * sines[i] + from[b] * cosines[i];
                }
            }
        }
    });
}

void Executor::attention(int qk, int v, int value_column, int layer, int heads, int kv_heads, int head_dim,
                         float scale, int out) {
    require(head_dim % 16 == 0 && heads % kv_heads == 0, "attention: head_dim must be a multiple of 16, and the query "
                                                         "heads a multiple of the key heads");
    require(width(qk) == (heads + kv_heads) * head_dim && width(out) == heads * head_dim &&
                value_column + kv_heads * head_dim <= width(v),
            "attention: widths do not hold the heads");
    writes(out);
    attention_layers_ = std::max(attention_layers_, layer + 1);
    attention_heads_ = heads;
    kv_heads_ = kv_heads;
    head_dim_ = head_dim;
    const auto kv = [=, this] {
        const size_t at = size_t(layer) * pass_.blocks * kv_heads * head_dim * kKvBlock;
        return KvLayer{pass_.keys + at, pass_.values + at, kv_heads, head_dim};
    };
    record_columns("write_kv", kv_heads * head_dim, head_dim, false, false, [=, this](int rows, int begin, int end) {
        const Matrix keys = {matrix(qk).data + heads * head_dim, width(qk)};
        const Matrix values = {matrix(v).data + value_column, width(v)};
        kernels_.write_kv(kv(), pass_.map, keys, values, 0, rows, begin / head_dim, end / head_dim);
    });
    const int next = counter();
    const auto task_of = [=, this](int run) {
        AttentionTask task = {};
        task.kv = kv();
        task.map = &pass_.map;
        task.q = matrix(qk);
        task.out = matrix(out);
        task.heads = heads;
        task.scale = scale;
        task.row_begin = runs_[size_t(run)].row_begin;
        task.row_end = runs_[size_t(run)].row_end;
        task.segment_end = runs_[size_t(run)].segments;
        return task;
    };
    record("attention", [=, this](int thread) {
        int first = 0, piece = counters_[size_t(next)]->fetch_add(1, std::memory_order_relaxed);
        for (int run = 0; run < int(runs_.size()); ++run) {
            AttentionTask task = task_of(run);
            task.scratch = scratch_.data() + size_t(thread) * attention_scratch_size(head_dim);
            const int segments = split_segments_ ? task.segment_end : 1;
            const int pieces = kv_heads * segments;
            for (; piece < first + pieces; piece = counters_[size_t(next)]->fetch_add(1, std::memory_order_relaxed)) {
                task.kv_head = (piece - first) % kv_heads;
                if (split_segments_) {
                    const int segment = (piece - first) / kv_heads;
                    task.segment_begin = segment;
                    task.segment_end = segment + 1;
                    task.partial = states_.data() + state_offsets_[size_t(run)] +
                                   size_t(segment) * (task.row_end - task.row_begin) * heads *
                                       attention_state_size(head_dim);
                }
                kernels_.attention(task);
            }
            first += pieces;
        }
    }, {0, 0}, false);
    record_columns("merge_attention", heads * head_dim, head_dim, false, false, [=, this](int, int begin, int end) {
        if (!split_segments_) return;
        for (int run = 0; run < int(runs_.size()); ++run) {
            const AttentionTask task = task_of(run);
            for (int row = task.row_begin; row < task.row_end; ++row)
                for (int head = begin / head_dim; head < end / head_dim; ++head)
                    kernels_.merge_attention(task, states_.data() + state_offsets_[size_t(run)],
                                             pass_.map.positions[row] / kSegment + 1, row, head);
        }
    });
}

void Executor::swiglu(int gate_up, int out) {
    require(width(gate_up) == 2 * width(out), "swiglu: the input must hold gates and ups");
    writes(out);
    record_columns("swiglu", width(out), kGroup, buffers_[size_t(out)].wanted, false,
                   [this, gate_up, out](int rows, int begin, int end) {
                       kernels_.swiglu(matrix(gate_up), matrix(out), width(out), 0, rows, begin, end);
                   });
}

void Executor::select(int x, int out) {
    require(width(x) == width(out) && buffers_[size_t(out)].wanted, "select: the output must hold the wanted rows");
    writes(out);
    record_columns("select", width(x), kGroup, true, false, [this, x, out](int rows, int begin, int end) {
        for (int row = 0; row < rows; ++row)
            std::copy_n(matrix(x).row(pass_.wanted[row]) + begin, end - begin, matrix(out).row(row) + begin);
    });
}

void Executor::check(const Pass& pass) const {
    require(pass.rows > 0, "a pass needs at least one row");
    if (attention_layers_ > 0) {
        require(pass.layers == attention_layers_ && pass.kv_heads == kv_heads_ && pass.head_dim == head_dim_,
                "the KV cache's shape is not the model's");
    }
    const int slots = pass.blocks * kKvBlock;
    const auto in_range = [](int value, int end) { return value >= 0 && value < end; };
    for (int i = 0; i < pass.rows; ++i) {
        require(in_range(pass.tokens[i], vocabulary_), "token id " + std::to_string(pass.tokens[i]) +
                                                           " is outside the vocabulary of " +
                                                           std::to_string(vocabulary_));
        require(in_range(pass.map.slots[i], slots), "a row's slot is outside the KV cache");
        require(in_range(pass.map.requests[i], pass.requests), "a row's request is not in the pass");
        const int stored = std::min(pass.map.positions[i] + 1, pass.map.tail_starts[i]);
        require(pass.map.positions[i] >= 0 && stored <= pass.map.table_stride * kKvBlock,
                "a row's position is outside its block table");
        require(pass.map.tail_offsets[i] <= pass.map.tail_offsets[i + 1] &&
                    pass.map.positions[i] + 1 - stored <= pass.map.tail_offsets[i + 1] - pass.map.tail_offsets[i],
                "a row's tail does not reach its position");
    }
    for (int i = pass.map.tail_offsets[0]; i < pass.map.tail_offsets[pass.rows]; ++i)
        require(in_range(pass.map.tail_slots[i], slots), "an ancestor's slot is outside the KV cache");
    for (int i = 0; i < pass.requests * pass.map.table_stride; ++i)
        require(in_range(pass.map.tables[i], pass.blocks), "a block table names a block outside the KV cache");
    for (int i = 0; i < pass.wanted_rows; ++i)
        require(in_range(pass.wanted[i], pass.rows), "a wanted row is not in the pass");
}

void Executor::prepare(const Pass& pass) {
    for (Buffer& b : buffers_) b.memory.reserve(size_t(b.wanted ? pass.wanted_rows : pass.rows) * b.width);
    for (const auto& q : quantised_) {
        const size_t rows = size_t(q->wanted ? pass.wanted_rows : pass.rows);
        const size_t blocks = (rows + kRowBlock - 1) / kRowBlock, groups = size_t(q->width / kGroup);
        q->codes.reserve(blocks * kRowBlock * size_t(q->width));
        q->scales.reserve(blocks * kRowBlock * groups);
        q->sums.reserve(blocks * kRowBlock * groups);
        q->scaled_sums.reserve(blocks * kRowBlock * groups);
    }
    for (const auto& counter : counters_) counter->store(0, std::memory_order_relaxed);
}

// Runs of rows that read the cache alike, and whether their segments must be shared out to keep all threads busy.
// None of this changes a bit of the result.
void Executor::plan_attention() {
    runs_.clear();
    if (attention_layers_ == 0) return;
    const int threads = team_->size();
    const RowMap& map = pass_.map;
    const int most = std::clamp(pass_.rows * kv_heads_ / (4 * threads), 1, 8);
    const auto has_tail = [&](int row) { return map.tail_starts[row] <= map.positions[row]; };
    int longest = 1;
    for (int row = 0; row < pass_.rows;) {
        int end = row + 1, furthest = map.positions[row];
        while (!has_tail(row) && end < pass_.rows && end - row < most && map.requests[end] == map.requests[row] &&
               !has_tail(end)) {
            furthest = std::max(furthest, map.positions[end]);
            ++end;
        }
        runs_.push_back({row, end, furthest / kSegment + 1});
        longest = std::max(longest, runs_.back().segments);
        row = end;
    }
    split_segments_ = longest > 1 && int(runs_.size()) * kv_heads_ < 4 * threads;
    scratch_.reserve(size_t(threads) * attention_scratch_size(head_dim_));
    if (!split_segments_) return;
    state_offsets_.clear();
    size_t total = 0;
    for (const AttentionRun& run : runs_) {
        state_offsets_.push_back(total);
        total += size_t(run.segments) * (run.row_end - run.row_begin) * attention_heads_ *
                 attention_state_size(head_dim_);
    }
    states_.reserve(total);
}

void Executor::run(const Pass& pass) {
    check(pass);
    pass_ = pass;
    prepare(pass);
    plan_attention();
    team_->run([this](int thread) {
        using Clock = std::chrono::steady_clock;
        const bool profiling = profiling_ && thread == 0;
        Clock::time_point start = profiling ? Clock::now() : Clock::time_point();
        for (Operation& operation : operations_) {
            if (operation.barrier) team_->barrier();
            operation.work(thread);
            if (!profiling) continue;
            const Clock::time_point end = Clock::now();
            operation.seconds += std::chrono::duration<double>(end - start).count();
            start = end;
        }
    });
}

void Executor::profile(bool on) {
    profiling_ = on;
    if (on)
        for (Operation& operation : operations_) operation.seconds = 0;
}

std::vector<std::pair<std::string, double>> Executor::profiled() const {
    std::vector<std::pair<std::string, double>> times;
    for (const Operation& operation : operations_) times.emplace_back(operation.name, operation.seconds);
    return times;
}

}  // namespace outrider
