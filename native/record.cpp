// Recording a program: each method of Executor appends one operation, or hangs it onto the one before.
#include <algorithm>
#include <cmath>
#include <string>

#include "executor.h"

namespace outrider {
namespace {

// The part of [0, width) that a thread owns, in whole units.
std::pair<int, int> share(int width, int unit, int thread, int threads) {
    const int units = (width + unit - 1) / unit;
    const int begin = units * thread / threads * unit, end = units * (thread + 1) / threads * unit;
    return {std::min(begin, width), std::min(end, width)};
}

}  // namespace

// How a linear layer is cut into pieces: units of a tile or two.
struct Executor::LinearPlan {
    struct Part {
        Weight weight;
        int first_output;
    };
    std::vector<Part> parts;
    int columns = 0;      // of all parts, or of each where they are paired
    bool paired = false;  // a unit holds the same columns of every part (gates and ups), not the next ones
    bool aligned = true;  // every part but the last has whole tiles, so that units are columns
    int unit_tiles = 1;   // 2 where something follows the layer, on whole groups of columns

    int unit() const { return unit_tiles * kTile; }  // columns
    int units() const {
        if (paired) return (columns + unit() - 1) / unit();
        int tiles = 0;
        for (const Part& part : parts) tiles += part.weight.tiles();
        return (tiles + unit_tiles - 1) / unit_tiles;
    }

    // Calls f(part, first tile, last tile) for what the units [begin, end) hold of each part.
    template <class F>
    void for_tiles(int begin, int end, F f) const {
        int before = 0;
        for (const Part& part : parts) {
            const int first = std::max(unit_tiles * begin - before, 0);
            const int last = std::min(unit_tiles * end - before, part.weight.tiles());
            if (first < last) f(part, first, last);
            if (!paired) before += part.weight.tiles();
        }
    }

    // Each thread streams its own stretch of weights. Handing out a part of them in pieces took 6 to 16 percent longer on
    // two processors (docs/kernels.md).
    std::pair<int, int> own(int thread, int threads) const {
        return {units() * thread / threads, units() * (thread + 1) / threads};
    }
};

int Executor::buffer(int width, bool wanted) {
    require(width > 0, "a buffer needs a positive width");
    buffers_.push_back({.width = width, .wanted = wanted, .memory = {}});
    return int(buffers_.size()) - 1;
}

int Executor::input(int width) {
    const int index = buffer(width, false);
    buffers_[size_t(index)].filled = 0;
    return index;
}

void Executor::fill(int buffer, const float* values, int rows) {
    Buffer& b = buffers_.at(size_t(buffer));
    require(b.filled >= 0, "fill: the buffer is not an input");
    moved_ |= b.memory.reserve(size_t(rows) * b.width);
    std::copy_n(values, size_t(rows) * b.width, b.memory.data());
    b.filled = rows;
}

Matrix Executor::matrix(int buffer) const {
    const Buffer& b = buffers_[size_t(buffer)];
    return {b.memory.data(), b.width};
}

void Executor::record(const char* name, Yield yields, Work work) {
    operations_.push_back({.name = name, .yields = yields, .work = std::move(work)});
}

// An operation on columns alone. If the last one yields its input in whole units, it follows there, without a barrier;
// otherwise it stands on its own, and each thread takes its share of the columns.
void Executor::record_columns(const char* name, int input, int out, int unit, ColumnWork work) {
    if (!operations_.empty() && input >= 0) {
        Operation& last = operations_.back();
        if (last.yields.buffer == input && last.yields.unit % unit == 0) {
            if (last_plan_ && last_linear_ == operations_.size() - 1) last_plan_->unit_tiles = 2;
            last.name += std::string("+") + name;
            last.followers.push_back(std::move(work));
            last.yields.buffer = out;
            return;
        }
    }
    const int columns = width(out);
    const bool wanted = is_wanted(out);
    record(name, {out, unit}, [this, columns, unit, wanted, work = std::move(work)](int thread, const Finish& finish) {
        const auto [begin, end] = share(columns, unit, thread, team_->size());
        if (begin >= end) return;
        work(0, rows_of(wanted), begin, end);
        finish(0, rows_of(wanted), begin, end);
    });
}

int Executor::counter() {
    counters_.push_back(std::make_unique<std::atomic<int>>(0));
    return int(counters_.size()) - 1;
}

void Executor::embed(const PackedWeight& weight, int out) {
    const Weight w = weight.view();
    vocabulary_ = vocabulary_ == 0 ? w.outputs : std::min(vocabulary_, w.outputs);
    require(width(out) == w.inputs, "embed: the buffer's width is not the embedding's");
    require(!is_wanted(out), "embed: the output must hold all rows");
    writes(out);
    record_columns("embed", -1, out, kGroup, [this, w, out](int row_begin, int row_end, int begin, int end) {
        kernels_.embed(w, pass_.tokens, matrix(out), row_begin, row_end, begin, end);
    });
}

void Executor::rms_norm(int x, std::vector<float> weight, float epsilon, int out) {
    require(width(x) == int(weight.size()) && width(x) == width(out), "rms_norm: widths differ");
    require(is_wanted(x) == is_wanted(out), "rms_norm: the buffers' rows differ");
    writes(out);
    record_columns("rms_norm", -1, out, kGroup,
                   [this, x, weight = std::move(weight), epsilon, out](int row_begin, int row_end, int begin, int end) {
                       kernels_.rms_norm(matrix(x), weight.data(), epsilon, matrix(out), int(weight.size()), row_begin,
                                         row_end, begin, end);
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
    const bool wanted = b.wanted;
    record_columns("quantise", x, x, kGroup, [this, x, q, wanted](int row_begin, int row_end, int begin, int end) {
        kernels_.quantise(matrix(x), q->view(rows_of(wanted)), q->width, row_begin, row_end, begin, end);
    });
    return b.quantised;
}

void Executor::linear(int x, std::vector<const PackedWeight*> weights, std::vector<float> bias, int residual,
                      int out) {
    auto plan = std::make_shared<LinearPlan>();
    int quantised = -1;
    for (const PackedWeight* packed : weights) {
        const Weight& w = packed->view();
        require(w.inputs == width(x), "linear: the weight's inputs are not the buffer's width");
        if (is_quantised(w.format)) quantised = quantise(x);
        if (plan->columns % kTile != 0) plan->aligned = false;
        plan->parts.push_back({w, plan->columns});
        plan->columns += w.outputs;
    }
    const int outputs = plan->columns;
    require(outputs == width(out), "linear: the weights' outputs are not the buffer's width");
    require(bias.empty() || int(bias.size()) == outputs, "linear: the bias's length is not the outputs'");
    require(is_wanted(x) == is_wanted(out), "linear: the buffers' rows differ");
    require(residual < 0 || (width(residual) == outputs && is_wanted(residual) == is_wanted(out)),
            "linear: the residual's shape is not the output's");
    writes(out);
    const bool wanted = is_wanted(x);
    if (last_plan_) {
        // Whoever is done with a layer fetches the beginning of its part of the next one while it waits for the others.
        operations_[last_linear_].epilogues.push_back([plan, threads = team_->size()](int thread) {
            const int first = plan->own(thread, threads).first;
            plan->for_tiles(first, first + 1, [](const LinearPlan::Part& part, int tile, int) {
                const uint8_t* from = part.weight.tile(tile);
                const size_t left = size_t(part.weight.tile(part.weight.tiles()) - from);
                for (size_t at = 0; at < std::min(left, kFetchAhead); at += 64) __builtin_prefetch(from + at, 0, 3);
            });
        });
    }
    const Yield yields = {plan->aligned ? out : -1, 2 * kTile};
    record("linear", yields, [=, this, bias = std::move(bias)](int thread, const Finish& finish) {
        const int rows = rows_of(wanted), threads = team_->size();
        LinearTask task = {};
        task.x = matrix(x);
        if (quantised >= 0) task.xq = quantised_[size_t(quantised)]->view(rows);
        if (residual >= 0) task.residual = matrix(residual);
        task.y = matrix(out);
        task.rows = rows;
        const auto [begin, end] = plan->own(thread, threads);
        if (begin >= end) return;
        const LinearPlan::Part* part = nullptr;
        int first = 0, last = 0;
        const auto run = [&](const uint8_t* after) {
            task.weight = &part->weight;
            task.bias = bias.empty() ? nullptr : bias.data() + part->first_output;
            task.first_output = part->first_output;
            task.next = after;
            kernels_.linear(task, first, last);
        };
        plan->for_tiles(begin, end, [&](const LinearPlan::Part& p, int from, int to) {
            if (part) run(p.weight.tile(from));
            part = &p;
            first = from;
            last = to;
        });
        run(nullptr);
        finish(0, rows, begin * plan->unit(), std::min(end * plan->unit(), plan->columns));
    });
    last_plan_ = plan;
    last_linear_ = operations_.size() - 1;
}

void Executor::angles(std::vector<double> frequencies, int out) {
    const int half = int(frequencies.size());
    require(width(out) == 2 * half, "angles: the buffer must hold a cosine and a sine per frequency");
    require(!is_wanted(out), "angles: the output must hold all rows");
    writes(out);
    record("angles", {-1, 1}, [=, this](int thread, const Finish&) {
        const auto [begin, end] = share(half, 1, thread, team_->size());
        for (int row = 0; row < pass_.rows; ++row) {
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
    require(heads > 0 && head_dim > 0 && heads * head_dim == width(out) && heads * head_dim <= width(x),
            "rope: widths do not hold the heads");
    require(!is_wanted(x) && !is_wanted(angles) && !is_wanted(out), "rope: only all rows can be rotated");
    const int rotated = width(angles) / 2;
    require(rotated <= head_dim / 2, "rope: more frequencies than pairs in a head");
    writes(out);
    record_columns("rope", -1, out, head_dim, [=, this](int row_begin, int row_end, int begin, int end) {
        kernels_.rotate(matrix(x), matrix(angles), rotated, interleaved, head_dim, matrix(out), row_begin, row_end,
                        begin, end);
    });
}

void Executor::attention(int qk, int v, int value_column, int layer, int heads, int kv_heads, int head_dim,
                         float scale, int out) {
    require(heads > 0 && kv_heads > 0 && head_dim > 0 && head_dim % 16 == 0 && heads % kv_heads == 0,
            "attention: head_dim must be a multiple of 16, and the query heads a multiple of the key heads");
    require(width(qk) == (heads + kv_heads) * head_dim && width(out) == heads * head_dim && value_column >= 0 &&
                value_column + kv_heads * head_dim <= width(v),
            "attention: widths do not hold the heads");
    require(!is_wanted(qk) && !is_wanted(v) && !is_wanted(out), "attention: only all rows can attend");
    const bool alike = heads == attention_heads_ && kv_heads == kv_heads_ && head_dim == head_dim_;
    require(layer >= 0 && (attention_layers_ == 0 || alike), "attention: all layers must have the same heads");
    writes(out);
    attention_layers_ = std::max(attention_layers_, layer + 1);
    attention_heads_ = heads;
    kv_heads_ = kv_heads;
    head_dim_ = head_dim;
    const auto kv = [=, this] {
        const size_t words = size_t(kv_heads) * kKvRun * KvLayer::block_words(head_dim);
        return KvLayer{pass_.kv + size_t(layer) * words, size_t(pass_.layers) * words, kv_heads, head_dim};
    };
    const int per_kv = heads / kv_heads, group_width = per_kv * head_dim;
    // Whoever waits at the end of the layer before fetches what it will read first, and the places it will write to.
    const auto fetch = [=, this](int thread) {
        if (thread < int(pieces_.size())) {
            const AttentionPiece& piece = pieces_[size_t(thread)];
            const KvBlock from(kv().at(first_block(piece), piece.kv_head), head_dim);
            for (int i = 0; i < head_dim * kKvBlock / 2; i += 16) {
                __builtin_prefetch(from.keys + i, 0, 2);
                __builtin_prefetch(from.values + i, 0, 2);
            }
        }
        const auto [begin, end] = share(width(qk), head_dim, thread, team_->size());
        const int slot = pass_.map.slots[0], place = slot % kKvBlock;
        for (int head = std::max(begin / head_dim, heads); head < end / head_dim; ++head) {
            const KvBlock to(kv().at(slot / kKvBlock, head - heads), head_dim);
            for (int i = 0; i < head_dim / 2; ++i) __builtin_prefetch(to.keys + i * kKvBlock + place, 1, 3);
            for (int i = 0; i < head_dim; i += 16)
                __builtin_prefetch(to.values + place % (kKvBlock / 2) * head_dim + i, 1, 3);
        }
    };
    if (last_plan_) operations_[last_linear_].epilogues.push_back(fetch);
    // Whoever has rotated a key stores it, with its value; that must have been made before, not in the same operation.
    const bool value_is_older = qk != v && !operations_.empty() && operations_.back().followers.empty();
    const int input = value_is_older ? qk : -1;
    record_columns("write_kv", input, qk, head_dim, [=, this](int row_begin, int row_end, int begin, int end) {
        for (int run = 0; run < int(runs_.size()); ++run) {
            const auto [first, last, segments, states] = runs_[size_t(run)];
            const int count = (last - first) * per_kv;
            for (int row = std::max(first, row_begin); row < std::min(last, row_end); ++row)
                for (int head = begin / head_dim; head < std::min(end / head_dim, heads); ++head) {
                    const int kv_head = head / per_kv, query = (row - first) * per_kv + head % per_kv;
                    query_scales(run, kv_head)[query] =
                        kernels_.encode_query(matrix(qk).row(row) + head * head_dim, head_dim, scale,
                                              query_codes(run, kv_head) + query, count);
                }
        }
        const Matrix keys = {matrix(qk).data + heads * head_dim, width(qk)};
        const Matrix values = {matrix(v).data + value_column, width(v)};
        const int first = std::max(begin / head_dim - heads, 0), last = end / head_dim - heads;
        if (first < last) kernels_.write_kv(kv(), pass_.map, keys, values, row_begin, row_end, first, last);
    });
    const int next = counter();
    const auto task_of = [=, this](int run) {
        AttentionTask task = {};
        task.kv = kv();
        task.map = &pass_.map;
        task.out = matrix(out);
        task.heads = heads;
        task.row_begin = runs_[size_t(run)].row_begin;
        task.row_end = runs_[size_t(run)].row_end;
        return task;
    };
    record("attention", {out, group_width}, [=, this](int thread, const Finish& finish) {
        // Threads that keep in step take turns, so that each can guess, and fetch, what it will get next.
        const int threads = team_->size(), count = int(pieces_.size());
        for (int at = thread; at < count;) {
            const AttentionPiece& piece = pieces_[size_t(at)];
            const AttentionPiece& following = pieces_[size_t(std::min(at + threads, count - 1))];
            AttentionTask task = task_of(piece.run);
            task.query_codes = query_codes(piece.run, piece.kv_head);
            task.query_scales = query_scales(piece.run, piece.kv_head);
            task.kv_head = piece.kv_head;
            task.segment_begin = piece.segment_begin;
            task.segment_end = piece.segment_end;
            task.next_block = first_block(following);
            task.next_head = following.kv_head;
            task.scratch = scratch_.data() + size_t(thread) * scratch_size();
            if (split_segments_)
                task.partial = states_.data() + runs_[size_t(piece.run)].states +
                               size_t(piece.segment_begin) * (task.row_end - task.row_begin) * heads *
                                   attention_state_size(head_dim);
            kernels_.attention(task);
            if (!split_segments_)
                finish(task.row_begin, task.row_end, piece.kv_head * group_width, (piece.kv_head + 1) * group_width);
            at = threads + counters_[size_t(next)]->fetch_add(1, std::memory_order_relaxed);
        }
        if (!split_segments_) return;
        team_->barrier(thread);
        const auto [begin, end] = share(heads * head_dim, group_width, thread, team_->size());
        for (int run = 0; run < int(runs_.size()) && begin < end; ++run) {
            const AttentionTask task = task_of(run);
            for (int row = task.row_begin; row < task.row_end; ++row)
                for (int head = begin / head_dim; head < end / head_dim; ++head)
                    kernels_.merge_attention(task, states_.data() + runs_[size_t(run)].states,
                                             pass_.map.positions[row] / kSegment + 1, row, head);
            finish(task.row_begin, task.row_end, begin, end);
        }
    });
}

void Executor::swiglu(int gate_up, int out) {
    require(width(gate_up) == 2 * width(out), "swiglu: the input must hold gates and ups");
    require(is_wanted(gate_up) == is_wanted(out), "swiglu: the buffers' rows differ");
    writes(out);
    // After the layer that makes gates and ups, of one width: both are made together, and their product at once.
    int input = -1;
    if (last_plan_ && last_linear_ == operations_.size() - 1 && operations_.back().yields.buffer == gate_up &&
        last_plan_->parts.size() == 2 && last_plan_->parts[1].first_output == width(out)) {
        last_plan_->paired = true;
        last_plan_->columns = width(out);
        input = gate_up;
    }
    record_columns("swiglu", input, out, kGroup, [=, this](int row_begin, int row_end, int begin, int end) {
        kernels_.swiglu(matrix(gate_up), matrix(out), width(out), row_begin, row_end, begin, end);
    });
}

void Executor::select(int x, int out) {
    require(width(x) == width(out), "select: widths differ");
    require(!is_wanted(x) && is_wanted(out), "select: the input must hold all rows, the output the wanted ones");
    writes(out);
    record_columns("select", -1, out, kGroup, [this, x, out](int row_begin, int row_end, int begin, int end) {
        for (int row = row_begin; row < row_end; ++row)
            std::copy_n(matrix(x).row(pass_.wanted[row]) + begin, end - begin, matrix(out).row(row) + begin);
    });
}

void Executor::maxima(int x, int out) {
    require(width(out) == (width(x) + kMaximum - 1) / kMaximum, "maxima: the output must hold one for each 32 columns");
    require(is_wanted(x) == is_wanted(out), "maxima: the buffers' rows differ");
    writes(out);
    record_columns("maxima", x, x, kMaximum, [this, x, out](int row_begin, int row_end, int begin, int end) {
        kernels_.maxima(matrix(x), matrix(out), row_begin, row_end, begin, end);
    });
}

}  // namespace outrider
