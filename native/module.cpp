// The Python face of the native core: weights, threads, and the executor of recorded programs.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "chains.h"
#include "executor.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace outrider;

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Tables = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Cache = nb::ndarray<int32_t, nb::ndim<5>, nb::c_contig, nb::device::cpu>;

// The rows of a pass, on a KV cache. What can be checked once per call is checked here or in Executor::run, before a
// thread starts.
Pass pass_of(Ints tokens, Ints positions, Ints slots, Ints requests, Tables tables, Ints tail_starts, Ints tail_offsets,
             Ints tail_slots, Ints wanted, Cache kv, int blocks) {
    const size_t rows = tokens.shape(0);
    if (positions.shape(0) != rows || slots.shape(0) != rows || requests.shape(0) != rows ||
        tail_starts.shape(0) != rows || tail_offsets.shape(0) != rows + 1)
        throw std::invalid_argument("the arrays of a pass differ in length");
    if (tail_offsets.data()[0] != 0 || tail_offsets.data()[rows] != int32_t(tail_slots.shape(0)))
        throw std::invalid_argument("tail_offsets do not span tail_slots");
    const size_t head_dim = kv.shape(4) / kKvBlock - 2;
    if (kv.shape(3) != kKvRun || kv.shape(4) != KvLayer::block_words(int(head_dim)))
        throw std::invalid_argument("the KV cache is not [blocks / 8, layers, heads, 8, 32 (head_dim + 2)]");
    if (blocks < 0 || size_t(blocks) > kv.shape(0) * kKvRun)
        throw std::invalid_argument("the KV cache does not hold so many blocks");
    Pass pass = {};
    pass.rows = int(rows);
    pass.tokens = tokens.data();
    pass.map = {positions.data(), slots.data(),       requests.data(),     tables.data(), int(tables.shape(1)),
                tail_starts.data(), tail_offsets.data(), tail_slots.data()};
    pass.requests = int(tables.shape(0));
    pass.wanted_rows = int(wanted.shape(0));
    pass.wanted = wanted.data();
    pass.kv = kv.data();
    pass.layers = int(kv.shape(1));
    pass.blocks = blocks;
    pass.kv_heads = int(kv.shape(2));
    pass.head_dim = int(head_dim);
    return pass;
}

bool run(Executor& executor, Ints tokens, Ints positions, Ints slots, Ints requests, Tables tables, Ints tail_starts,
         Ints tail_offsets, Ints tail_slots, Ints wanted, Cache kv, int blocks) {
    const Pass pass = pass_of(tokens, positions, slots, requests, tables, tail_starts, tail_offsets, tail_slots, wanted,
                              kv, blocks);
    nb::gil_scoped_release release;
    return executor.run(pass);
}

// Tokens of each chain, and their probabilities.
std::vector<std::pair<std::vector<int32_t>, std::vector<double>>> draft_chains(
    Executor& executor, int logits, int hidden, int input, Ints ids, Ints tokens, Ints positions, Ints slots,
    Ints requests, Tables tables, Ints tail_starts, Ints tail_offsets, Ints tail_slots, Ints wanted, Cache kv,
    int blocks) {
    if (int(ids.shape(0)) != executor.width(logits)) throw std::invalid_argument("draft: not one id per logit");
    const Pass layout = pass_of(tokens, positions, slots, requests, tables, tail_starts, tail_offsets, tail_slots, wanted,
                                kv, blocks);
    nb::gil_scoped_release release;
    std::vector<std::pair<std::vector<int32_t>, std::vector<double>>> result;
    for (Chain& chain : draft(executor, {logits, hidden, input}, layout, ids.data()))
        result.emplace_back(std::move(chain.tokens), std::move(chain.chances));
    return result;
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "Outrider's native core.";
    nb::set_leak_warnings(false);  // an object that is alive when the interpreter ends is no user's concern

    m.def("best_kernels", [] { return std::string(best_kernels().name); });
    m.def("can_run", [](const std::string& name) { return find_kernels(name.c_str()) != nullptr; }, "name"_a);

    nb::class_<Team>(m, "Team")
        .def(nb::init<int>(), "threads"_a)
        .def_prop_ro("size", &Team::size);

    nb::class_<Arena>(m, "Arena").def(nb::init<>());

    nb::class_<PackedWeight>(m, "PackedWeight")
        .def("__init__",
             [](PackedWeight* self, std::shared_ptr<Arena> arena, const std::string& type, Bytes raw, int outputs,
                int inputs) {
                 nb::gil_scoped_release release;
                 new (self) PackedWeight(std::move(arena), type, raw.data(), raw.shape(0), outputs, inputs);
             },
             "arena"_a, "type"_a, "raw"_a, "outputs"_a, "inputs"_a)
        .def_prop_ro("outputs", [](const PackedWeight& w) { return w.view().outputs; })
        .def_prop_ro("inputs", [](const PackedWeight& w) { return w.view().inputs; })
        .def_prop_ro("bytes", &PackedWeight::bytes);

    nb::class_<Executor>(m, "Executor")
        .def("__init__",
             [](Executor* self, std::shared_ptr<Team> team, const std::string& kernels) {
                 const Kernels* found = find_kernels(kernels.c_str());
                 if (!found) throw std::invalid_argument("this processor has no kernels named " + kernels);
                 new (self) Executor(std::move(team), *found);
             },
             "team"_a, "kernels"_a)
        .def("buffer", &Executor::buffer, "width"_a, "wanted"_a)
        .def("input", &Executor::input, "width"_a)
        .def("fill",
             [](Executor& self, int buffer, Floats values) {
                 if (int(values.shape(1)) != self.width(buffer))
                     throw std::invalid_argument("fill: the values' width is not the input's");
                 self.fill(buffer, values.data(), int(values.shape(0)));
             },
             "buffer"_a, "values"_a.noconvert())
        .def("embed", &Executor::embed, "weight"_a, "out"_a, nb::keep_alive<1, 2>())
        .def("rms_norm", &Executor::rms_norm, "x"_a, "weight"_a, "epsilon"_a, "out"_a)
        .def("linear", &Executor::linear, "x"_a, "weights"_a, "bias"_a, "residual"_a, "out"_a)
        .def("angles", &Executor::angles, "frequencies"_a, "out"_a)
        .def("rope", &Executor::rope, "x"_a, "angles"_a, "heads"_a, "head_dim"_a, "interleaved"_a, "out"_a)
        .def("attention", &Executor::attention, "qk"_a, "v"_a, "value_column"_a, "layer"_a, "heads"_a, "kv_heads"_a,
             "head_dim"_a, "scale"_a, "out"_a)
        .def("swiglu", &Executor::swiglu, "gate_up"_a, "out"_a)
        .def("select", &Executor::select, "x"_a, "out"_a)
        .def("maxima", &Executor::maxima, "x"_a, "out"_a)
        .def("run", &run, "tokens"_a, "positions"_a, "slots"_a, "requests"_a, "tables"_a, "tail_starts"_a,
             "tail_offsets"_a, "tail_slots"_a, "wanted"_a, "kv"_a.noconvert(), "blocks"_a)
        .def("draft", &draft_chains, "logits"_a, "hidden"_a, "input"_a, "ids"_a, "tokens"_a, "positions"_a, "slots"_a,
             "requests"_a, "tables"_a, "tail_starts"_a, "tail_offsets"_a, "tail_slots"_a, "wanted"_a,
             "kv"_a.noconvert(), "blocks"_a)
        .def("output",
             [](Executor& self, int buffer, int rows) {
                 return nb::ndarray<nb::numpy, const float, nb::ndim<2>>(
                     self.data(buffer), {size_t(rows), size_t(self.width(buffer))}, nb::find(self));
             },
             "buffer"_a, "rows"_a)
        .def("profile", &Executor::profile, "on"_a)
        .def("profiled", &Executor::profiled)
        .def_prop_ro("threads", &Executor::threads)
        .def_prop_ro("kernels", &Executor::kernels);
}
