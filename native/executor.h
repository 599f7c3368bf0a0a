// Replays a recorded program: every operation of a model's forward pass, in order, on one team of threads.
//
// All threads walk the list of operations together, with a barrier before each. An operation is split by columns, so
// that a single row already keeps every thread busy, or hands out pieces through a counter. What comes after it column by
// column (the activation after the gates, the rounding to int8 before the next layer) is done by the thread that made the
// columns: moving them to another processor's cache would cost more than computing them.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels.h"
#include "pack.h"
#include "team.h"

namespace outrider {

// A 64-byte aligned array that grows, never shrinks, and forgets its contents when it grows.
template <class T>
class Array {
public:
    // Whether it had to grow, and now lies elsewhere.
    bool reserve(size_t count) {
        if (count <= count_) return false;
        data_.reset(static_cast<T*>(std::aligned_alloc(64, (count * sizeof(T) + 63) / 64 * 64)));
        if (!data_) throw std::bad_alloc();
        count_ = count;
        return true;
    }
    T* data() const { return data_.get(); }

private:
    struct Free {
        void operator()(T* p) const { std::free(p); }
    };
    std::unique_ptr<T, Free> data_;
    size_t count_ = 0;
};

// The rows of one pass (the arrays of outrider.types.Rows) and the KV cache that they read and write.
struct Pass {
    int rows;
    const int32_t* tokens;
    RowMap map;
    int requests;
    int wanted_rows;
    const int32_t* wanted;
    int32_t* kv;  // [blocks / 8, rounded up][layers], each as in KvLayer
    int layers;
    int blocks;
    int kv_heads;
    int head_dim;
};

// Throws std::invalid_argument with the message unless the condition holds.
void require(bool condition, const std::string& message);

class Executor {
public:
    Executor(std::shared_ptr<Team> team, const Kernels& kernels) : team_(std::move(team)), kernels_(kernels) {}

    // Buffers are float [rows][width], one row per row of the pass, or per wanted row where `wanted`.
    int buffer(int width, bool wanted);
    // A buffer of all rows that the caller fills before each pass.
    int input(int width);
    // Copies [rows][width] into an input; the next pass must have as many rows.
    void fill(int buffer, const float* values, int rows);

    void embed(const PackedWeight& weight, int out);
    void rms_norm(int x, std::vector<float> weight, float epsilon, int out);
    // out = x W^T (+ bias) (+ residual) for each weight, side by side in columns of `out`. residual: buffer or -1.
    void linear(int x, std::vector<const PackedWeight*> weights, std::vector<float> bias, int residual, int out);
    // out[row] = cos then sin of position * frequency, for every frequency.
    void angles(std::vector<double> frequencies, int out);
    // Rotates the first `heads` heads of x; `interleaved` pairs lanes (2i, 2i + 1), otherwise (i, i + head_dim / 2).
    void rope(int x, int angles, int heads, int head_dim, bool interleaved, int out);
    // qk: rotated query heads, then rotated key heads; values: columns [value_column, ...) of v.
    void attention(int qk, int v, int value_column, int layer, int heads, int kv_heads, int head_dim, float scale,
                   int out);
    void swiglu(int gate_up, int out);
    void select(int x, int out);  // the wanted rows of x
    void maxima(int x, int out);  // the largest of each 32 columns of x

    // Returns whether some buffer lies elsewhere than after the pass before.
    bool run(const Pass& pass);

    // Seconds spent in each kind of operation while `profile(true)` was in force, in the order of the program.
    void profile(bool on);
    std::vector<std::pair<std::string, double>> profiled() const;

    const float* data(int buffer) const { return buffers_.at(size_t(buffer)).memory.data(); }
    int width(int buffer) const { return buffers_.at(size_t(buffer)).width; }
    int wanted_rows() const { return pass_.wanted_rows; }  // of the last pass
    int threads() const { return team_->size(); }
    const char* kernels() const { return kernels_.name; }

private:
    struct Buffer {
        int width;
        bool wanted;
        int filled = -1;     // an input's rows for the next pass, 0 if it has none yet; -1: not an input
        int quantised = -1;  // index into quantised_, once a quantised weight reads it
        bool fresh = false;  // whether that holds what the buffer holds now
        Array<float> memory;
    };
    struct QuantisedBuffer {
        int width;
        bool wanted;
        Array<int8_t> memory;

        Quantised view(int rows) const { return {memory.data(), rows}; }
    };
    // Work on columns [begin, end) of some rows, which reads nothing that is made elsewhere in the same operation.
    using ColumnWork = std::function<void(int row_begin, int row_end, int begin, int end)>;
    using Finish = ColumnWork;  // called when columns of an operation's output are complete
    using Work = std::function<void(int thread, const Finish& finish)>;

    struct Yield {  // what an operation finishes, and in which multiples of columns
        int buffer, unit;
    };
    // A barrier stands before each operation. Its followers need none: they run on columns just finished, in the same
    // thread, while these are in its cache.
    struct Operation {
        std::string name;
        Yield yields;
        Work work;
        std::vector<ColumnWork> followers = {};
        std::vector<std::function<void(int thread)>> epilogues = {};  // run by each thread after its part of the work
        double seconds = 0;  // spent in it by all profiled passes, waiting for the other threads included
    };
    struct LinearPlan;
    struct AttentionRun {  // rows of one request that are computed together
        int row_begin, row_end, segments;
        size_t states = 0;  // where its partial states begin, if segments are split
    };
    struct AttentionPiece {  // what one thread computes at a time
        int run, kv_head, segment_begin, segment_end;
    };

    Matrix matrix(int buffer) const;
    bool is_wanted(int buffer) const { return buffers_.at(size_t(buffer)).wanted; }
    int rows_of(bool wanted) const { return wanted ? pass_.wanted_rows : pass_.rows; }
    void record(const char* name, Yield yields, Work work);
    void record_columns(const char* name, int input, int out, int unit, ColumnWork work);
    void writes(int out) { buffers_.at(size_t(out)).fresh = false; }
    int quantise(int x);
    int counter();
    void check(const Pass& pass) const;
    void prepare(const Pass& pass);
    void plan_attention();
    int first_block(const AttentionPiece& piece) const;  // the block of the cache that its first chunk is in
    int32_t* query_codes(int run, int kv_head) const;
    float* query_scales(int run, int kv_head) const;
    size_t scratch_size() const {  // of a thread's attention
        return attention_scratch_size(head_dim_, kRunRows * attention_heads_ / kv_heads_);
    }

    std::shared_ptr<Team> team_;
    const Kernels& kernels_;
    std::vector<Buffer> buffers_;
    std::vector<std::unique_ptr<QuantisedBuffer>> quantised_;
    std::vector<Operation> operations_;
    std::vector<std::unique_ptr<std::atomic<int>>> counters_;
    bool profiling_ = false;
    bool moved_ = false;  // whether a buffer grew, and lies elsewhere, since the last pass
    std::shared_ptr<LinearPlan> last_plan_;
    size_t last_linear_ = 0;  // the operation of last_plan_
    int vocabulary_ = 0;
    int attention_layers_ = 0, attention_heads_ = 0, kv_heads_ = 0, head_dim_ = 0;

    Pass pass_ = {};
    std::vector<AttentionRun> runs_;
    std::vector<AttentionPiece> pieces_;
    bool split_segments_ = false;
    Array<float> states_, scratch_, query_scales_;
    Array<int32_t> query_codes_;
};

}  // namespace outrider
