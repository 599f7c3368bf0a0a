#include "chains.h"

#include <algorithm>
#include <numeric>

#include "sampling.h"

namespace outrider {
namespace {

// The arrays of a pass of one row per chain.
class Depth {
public:
    void clear() {
        for (auto* each : {&tokens_, &positions_, &slots_, &requests_, &tail_starts_}) each->clear();
    }
    bool empty() const { return tokens_.empty(); }

    void add(int32_t token, const RowMap& layout, int row) {
        tokens_.push_back(token);
        positions_.push_back(layout.positions[row]);
        slots_.push_back(layout.slots[row]);
        requests_.push_back(layout.requests[row]);
        tail_starts_.push_back(layout.tail_starts[row]);
    }

    Pass pass(const Pass& layout) {
        const size_t rows = tokens_.size();
        no_tails_.assign(rows + 1, 0);
        wanted_.resize(rows);
        std::iota(wanted_.begin(), wanted_.end(), 0);
        Pass pass = layout;
        pass.rows = pass.wanted_rows = int(rows);
        pass.tokens = tokens_.data();
        pass.wanted = wanted_.data();
        pass.map.positions = positions_.data();
        pass.map.slots = slots_.data();
        pass.map.requests = requests_.data();
        pass.map.tail_starts = tail_starts_.data();
        pass.map.tail_offsets = no_tails_.data();
        return pass;
    }

private:
    std::vector<int32_t> tokens_, positions_, slots_, requests_, tail_starts_, no_tails_, wanted_;
};

}  // namespace

std::vector<Chain> draft(Executor& executor, const Loop& loop, const Pass& layout, const int32_t* ids) {
    require(layout.requests == executor.wanted_rows(), "draft: the last pass had another number of wanted rows");
    require(executor.width(loop.hidden) == executor.width(loop.input), "draft: hidden states do not fit the input");
    std::vector<Chain> chains(size_t(layout.requests));
    std::vector<int> next(chains.size() + 1);  // row of the layout, of each chain
    for (int row = 0; row < layout.rows; ++row) {
        const int request = layout.map.requests[row];
        require(request >= 0 && request < layout.requests && (row == 0 || request >= layout.map.requests[row - 1]),
                "draft: rows are not in the order of their requests");
        ++next[size_t(request) + 1];
    }
    std::partial_sum(next.begin(), next.end(), next.begin());
    const std::vector<int> end(next.begin() + 1, next.end());

    const size_t logits_width = size_t(executor.width(loop.logits)), width = size_t(executor.width(loop.hidden));
    std::vector<int> drafting(chains.size()), going;  // the chains of the last pass's rows, and of the next one's
    std::iota(drafting.begin(), drafting.end(), 0);
    std::vector<float> hidden;
    Depth depth;
    while (!drafting.empty()) {
        hidden.clear(), going.clear(), depth.clear();
        for (size_t row = 0; row < drafting.size(); ++row) {
            const size_t at = size_t(drafting[row]);
            const auto [place, chance] = sampling::likeliest(executor.data(loop.logits) + row * logits_width, logits_width);
            if (chance == 0) continue;
            chains[at].tokens.push_back(ids[place]);
            chains[at].chances.push_back(chance);
            if (next[at] == end[at]) continue;
            depth.add(ids[place], layout.map, next[at]++);
            const float* state = executor.data(loop.hidden) + row * width;
            hidden.insert(hidden.end(), state, state + width);
            going.push_back(drafting[row]);
        }
        drafting.swap(going);
        if (depth.empty()) break;
        executor.fill(loop.input, hidden.data(), int(drafting.size()));
        executor.run(depth.pass(layout));  // no more rows than the pass before: its buffers stay where they are
    }
    return chains;
}

}  // namespace outrider
