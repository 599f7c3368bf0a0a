// Python's side of native sampling; see sampling.h.
#include "sampling.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>

#include <optional>
#include <stdexcept>

namespace nb = nanobind;
using namespace nb::literals;
using namespace outrider::sampling;

namespace {

using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void check(Floats logits, Floats maxima) {
    if (logits.shape(0) == 0 || maxima.shape(0) != blocks_of(logits.shape(0)))
        throw std::invalid_argument("maxima: not one per 32 logits");
}

Row row_of(Floats logits, Floats maxima, float peak, double temperature) {
    check(logits, maxima);
    return {logits.data(), maxima.data(), logits.shape(0), peak, float(1 / temperature)};
}

template <class T>
nb::object array(std::unique_ptr<T[]> values, size_t n) {
    T* data = values.release();
    nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
    return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(data, {n}, owner));
}

// The largest logit of each block.
nb::object maxima_array(Floats logits) {
    const std::vector<float> maxima = maxima_of(logits.data(), logits.shape(0));
    auto copy = std::make_unique_for_overwrite<float[]>(maxima.size());
    std::copy(maxima.begin(), maxima.end(), copy.get());
    return array(std::move(copy), maxima.size());
}

// The largest logit of each block, where only the logits of these ids have changed since `maxima` was true.
nb::object maxima_after(Floats logits, Floats maxima, Ints ids) {
    check(logits, maxima);
    const size_t n = logits.shape(0);
    auto after = std::make_unique_for_overwrite<float[]>(maxima.shape(0));
    std::copy_n(maxima.data(), maxima.shape(0), after.get());
    for (size_t i = 0; i < ids.shape(0); ++i) {
        if (ids.data()[i] < 0 || size_t(ids.data()[i]) >= n) throw std::invalid_argument("ids: one has no logit");
        const size_t block = size_t(ids.data()[i]) / kBlock, start = block * kBlock;
        after[block] = logits.data()[start + first_largest(logits.data() + start, std::min(kBlock, n - start))];
    }
    return array(std::move(after), maxima.shape(0));
}

// A copy with the penalties of `penalised` in adjust.py; output: tokens, each `times` so often. A token of both the
// prompt and the output is penalised once for repetition: what comes of it is made of what it was.
nb::object penalised(Floats logits, Ints prompt, Ints output, Floats times, float repetition, float presence,
                     float frequency) {
    const float* before = logits.data();
    const size_t n = logits.shape(0);
    auto after = std::make_unique_for_overwrite<float[]>(n);
    std::copy_n(before, n, after.get());
    const auto repeated = [&](int32_t id) {
        if (id < 0 || size_t(id) >= n) throw std::invalid_argument("a token has no logit");
        return after[id] = repetition == 1 ? before[id]
                           : before[id] < 0 ? before[id] * repetition
                                            : before[id] / repetition;
    };
    for (size_t i = 0; i < prompt.shape(0); ++i) repeated(prompt.data()[i]);
    for (size_t i = 0; i < std::min(output.shape(0), times.shape(0)); ++i) {
        const float value = repeated(output.data()[i]);
        after[output.data()[i]] = value - (presence + frequency * times.data()[i]);
    }
    return array(std::move(after), n);
}

// Place of the largest logit, the first on ties; NaN counts as the largest.
size_t argmax(Floats logits, Floats maxima) {
    check(logits, maxima);
    const size_t start = first_largest(maxima.data(), maxima.shape(0)) * kBlock;
    return start + first_largest(logits.data() + start, std::min(kBlock, logits.shape(0) - start));
}

// Its place, and its probability.
std::pair<size_t, double> likeliest_of(Floats logits) {
    if (logits.shape(0) == 0) throw std::invalid_argument("logits: there are none");
    const Likeliest found = likeliest(logits.data(), logits.shape(0));
    return {found.place, found.chance};
}

// Ids (None: all), weights and their sum.
nb::tuple law_arrays(Floats logits, Floats maxima, float peak, double temperature, size_t k, double share,
                     double least) {
    Law found = law(row_of(logits, maxima, peak, temperature), k, share, least);
    Tokens& tokens = found.tokens;
    nb::object ids = tokens.ids ? array(std::move(tokens.ids), tokens.n) : nb::none();
    return nb::make_tuple(ids, array(std::move(tokens.values), tokens.n), found.total);
}

// The token that the law of top-p draws in a race: the winner of all, if top-p keeps it.
int32_t race_all(Floats logits, Floats maxima, float peak, double temperature, double share, uint64_t block_key,
                 uint64_t key) {
    const Row row = row_of(logits, maxima, peak, temperature);
    const Keys keys{block_key, key};
    const int32_t winner = race(row, keys);
    if (share == 1 || is_needed(winner, row, share)) return winner;
    const Tokens rest = law(row, 0, share, 0).tokens;
    return race(rest.ids.get(), rest.values.get(), rest.n, keys);
}

}  // namespace

NB_MODULE(_sampling, module) {
    module.def("maxima", &maxima_array, "logits"_a);
    module.def("penalised", &penalised);
    module.def("maxima_after", &maxima_after, "logits"_a, "maxima"_a, "ids"_a);
    module.def("argmax", &argmax, "logits"_a, "maxima"_a);
    module.def("likeliest", &likeliest_of, "logits"_a);
    module.def("law", &law_arrays, "logits"_a, "maxima"_a, "peak"_a, "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a);
    module.def("key", [](uint64_t seed, uint64_t choice, uint64_t position, uint64_t purpose, uint64_t sibling,
                         uint64_t committed) { return key({seed, choice, position, purpose, sibling, committed}); });
    module.def(
        "pick",
        [](Floats weights, double total, double uniform) {
            return pick(weights.data(), weights.shape(0), total, uniform);
        },
        "weights"_a, "total"_a, "uniform"_a);
    module.def(
        "race",
        [](Ints ids, Floats weights, uint64_t block_key, uint64_t key) {
            return race(ids.data(), weights.data(), std::min(ids.shape(0), weights.shape(0)), Keys{block_key, key});
        },
        "ids"_a, "weights"_a, "block_key"_a, "key"_a);
    module.def("race_all", &race_all, "logits"_a, "maxima"_a, "peak"_a, "temperature"_a, "top_p"_a, "block_key"_a,
               "key"_a);
}
