// Greedy chains of a draft head: the most probable tokens of one pass are the rows of the next. All passes of a proposal
// are one call, since between two of them Python would take as long as the smaller ones do.
#pragma once

#include <vector>

#include "executor.h"

namespace outrider {

// Buffers of a program that can go on from what it gave.
struct Loop {
    int logits;   // of the wanted rows
    int hidden;   // of the wanted rows: what the row of the next token is to find in
    int input;    // this input
};

struct Chain {
    std::vector<int32_t> tokens;
    std::vector<double> chances;  // the probability that the program gives to each
};

// A chain from each wanted row of the last pass on.
//
// layout  rows for the tokens to come, as if they were known: those of request i, in order, are for chain i, which gets
//         one token more than that. `tokens` and `wanted` are not read.
// ids     what the places of the logits stand for.
//
// A chain ends early where the largest logit is not a finite number.
std::vector<Chain> draft(Executor& executor, const Loop& loop, const Pass& layout, const int32_t* ids);

}  // namespace outrider
