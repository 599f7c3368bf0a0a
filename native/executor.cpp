// Running a recorded program; see record.cpp for how it comes to be.
#include "executor.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>

namespace outrider {

void require(bool condition, const std::string& message) {
    if (!condition) throw std::invalid_argument(message);
}

void Executor::check(const Pass& pass) const {
    require(pass.rows > 0, "a pass needs at least one row");
    for (const Buffer& b : buffers_)
        require(b.filled < 0 || b.filled == pass.rows, "an input was filled with " + std::to_string(b.filled) +
                                                           " rows, the pass has " + std::to_string(pass.rows));
    if (attention_layers_ > 0) {
        require(pass.layers == attention_layers_ && pass.kv_heads == kv_heads_ && pass.head_dim == head_dim_,
                "the KV cache's shape is not the model's");
    }
    const int64_t slots = int64_t(pass.blocks) * kKvBlock, table_end = int64_t(pass.map.table_stride) * kKvBlock;
    const auto in_range = [](int value, int64_t end) { return value >= 0 && value < end; };
    for (int i = 0; i < pass.rows; ++i) {
        require(vocabulary_ == 0 || in_range(pass.tokens[i], vocabulary_), "token id " + std::to_string(pass.tokens[i]) +
                                                           " is outside the vocabulary of " +
                                                           std::to_string(vocabulary_));
        require(in_range(pass.map.slots[i], slots), "a row's slot is outside the KV cache");
        require(in_range(pass.map.requests[i], pass.requests), "a row's request is not in the pass");
        const int64_t length = int64_t(pass.map.positions[i]) + 1;
        const int64_t stored = std::min<int64_t>(length, pass.map.tail_starts[i]);
        require(length > 0 && stored >= 0 && stored <= table_end, "a row's position is outside its block table");
        require(pass.map.tail_offsets[i] <= pass.map.tail_offsets[i + 1] &&
                    length - stored <= int64_t(pass.map.tail_offsets[i + 1]) - pass.map.tail_offsets[i],
                "a row's tail does not reach its position");
    }
    for (int i = pass.map.tail_offsets[0]; i < pass.map.tail_offsets[pass.rows]; ++i)
        require(in_range(pass.map.tail_slots[i], slots), "an ancestor's slot is outside the KV cache");
    for (int64_t i = 0; i < int64_t(pass.requests) * pass.map.table_stride; ++i)
        require(in_range(pass.map.tables[i], pass.blocks), "a block table names a block outside the KV cache");
    for (int i = 0; i < pass.wanted_rows; ++i)
        require(in_range(pass.wanted[i], pass.rows), "a wanted row is not in the pass");
}

void Executor::prepare(const Pass& pass) {
    for (Buffer& b : buffers_) {
        moved_ |= b.memory.reserve(size_t(b.wanted ? pass.wanted_rows : pass.rows) * b.width);
        b.filled = std::min(b.filled, 0);  // what was filled is used up
    }
    for (const auto& q : quantised_) {
        const size_t rows = size_t(q->wanted ? pass.wanted_rows : pass.rows);
        q->memory.reserve(rows * size_t(q->width / kGroup) * Quantised::kBytes);
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
    // Rows together share each loaded key, but every thread should have two pieces of work or more: of key heads and
    // segments where there are several of those, else of key heads and runs.
    const int reach = *std::max_element(map.positions, map.positions + pass_.rows) + 1;
    const int runs = reach > kSegment ? 1 : (2 * threads + kv_heads_ - 1) / kv_heads_;
    const int most = std::clamp((pass_.rows + runs - 1) / runs, 1, kRunRows);
    int longest = 1;
    for (int row = 0; row < pass_.rows;) {
        int end = row, furthest = 0;
        for (; end < pass_.rows && end - row < most && map.requests[end] == map.requests[row]; ++end)
            furthest = std::max(furthest, map.positions[end]);
        runs_.push_back({.row_begin = row, .row_end = end, .segments = furthest / kSegment + 1});
        longest = std::max(longest, runs_.back().segments);
        row = end;
    }
    split_segments_ = longest > 1 && int(runs_.size()) * kv_heads_ < 4 * threads;
    scratch_.reserve(size_t(threads) * scratch_size());
    query_codes_.reserve(size_t(pass_.rows) * attention_heads_ * (head_dim_ / 2));
    query_scales_.reserve(size_t(kv_heads_) * runs_.size() * padded_lanes(kRunRows * attention_heads_ / kv_heads_));
    pieces_.clear();
    size_t states = 0;
    for (int run = 0; run < int(runs_.size()); ++run) {
        AttentionRun& r = runs_[size_t(run)];
        r.states = states;
        const int parts = split_segments_ ? r.segments : 1;
        states += size_t(parts) * (r.row_end - r.row_begin) * attention_heads_ * attention_state_size(head_dim_);
        for (int part = 0; part < parts; ++part)
            for (int head = 0; head < kv_heads_; ++head)
                pieces_.push_back({run, head, part, split_segments_ ? part + 1 : r.segments});
    }
    if (split_segments_) states_.reserve(states);
}

int Executor::first_block(const AttentionPiece& piece) const {
    const RowMap& map = pass_.map;
    const int chunk = piece.segment_begin * (kSegment / kKvBlock);
    return map.tables[size_t(map.requests[runs_[size_t(piece.run)].row_begin]) * map.table_stride + chunk];
}

// Codes of the run's queries [head_dim / 2][rows * query heads of the key head], and their scales.
int32_t* Executor::query_codes(int run, int kv_head) const {
    const AttentionRun& r = runs_[size_t(run)];
    const int per_kv = attention_heads_ / kv_heads_;
    const size_t before = size_t(r.row_begin) * attention_heads_ + size_t(r.row_end - r.row_begin) * per_kv * kv_head;
    return query_codes_.data() + before * (head_dim_ / 2);
}
float* Executor::query_scales(int run, int kv_head) const {
    const int padded = padded_lanes(kRunRows * attention_heads_ / kv_heads_);
    return query_scales_.data() + (size_t(run) * kv_heads_ + kv_head) * padded;
}

bool Executor::run(const Pass& pass) {
    check(pass);
    pass_ = pass;
    prepare(pass);
    plan_attention();
    team_->run([this](int thread) {
        using Clock = std::chrono::steady_clock;
        const bool profiling = profiling_ && thread == 0;
        Clock::time_point start = profiling ? Clock::now() : Clock::time_point();
        for (Operation& operation : operations_) {
            team_->barrier(thread);
            operation.work(thread, [&](int row_begin, int row_end, int begin, int end) {
                for (const ColumnWork& follower : operation.followers) follower(row_begin, row_end, begin, end);
            });
            for (const auto& epilogue : operation.epilogues) epilogue(thread);
            if (!profiling) continue;
            const Clock::time_point end = Clock::now();
            operation.seconds += std::chrono::duration<double>(end - start).count();
            start = end;
        }
    });
    return std::exchange(moved_, false);
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
