// Which drafted tokens are worth their rows? How far a drafter's estimates are believed, what a proposal would bring by
// them, how rows are shared out, and what a request may still risk. Pure arithmetic on a handful of numbers; it is native
// because each step does it with caches that a pass has just emptied, where Python takes twenty times as long.
// docs/policy.md explains it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "drafting.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace outrider {
namespace {

constexpr double kPrecision = 2.0;  // of the prior: odds are off by a factor of two, either way, in two of three texts
constexpr double kMemory = 12.0;    // the precision grows no further, so that a text may change its nature
constexpr double kLeast = 0.01;     // no estimate is believed to be certain
constexpr double kFarthest = 4.0;   // of the factor's logarithm from 0

constexpr double kBudget = 0.025;  // of its plain work no request has at any time lost more to drafts that failed
constexpr double kPrefill = 4.0;   // of the prompt, no more plain steps count than this: answers are short, too
constexpr double kComing = 32.0;   // reading may be paid for in advance out of so many plain steps that are still to come
constexpr double kWindow = 24.0;   // over so many plain steps' time the rate is taken; at first they have been plain

// A Python sequence, read where it lies: a table of costs is longer than what is looked at.
class Items {
public:
    explicit Items(nb::handle sequence) : items_(nb::steal(PySequence_Fast(sequence.ptr(), "expected a sequence"))) {
        if (!items_.is_valid()) throw nb::python_error();
    }

    size_t size() const { return size_t(PySequence_Fast_GET_SIZE(items_.ptr())); }

    PyObject* operator[](size_t i) const {
        if (i >= size()) throw nb::index_error("a sequence is too short");
        return PySequence_Fast_GET_ITEM(items_.ptr(), Py_ssize_t(i));
    }

    double number(size_t i) const {
        const double value = PyFloat_AsDouble((*this)[i]);
        if (value == -1.0 && PyErr_Occurred()) throw nb::python_error();
        return value;
    }

    long integer(size_t i) const {
        const long value = PyLong_AsLong((*this)[i]);
        if (value == -1 && PyErr_Occurred()) throw nb::python_error();
        return value;
    }

private:
    nb::object items_;
};

// How far one drafter's estimates can be believed, learnt within one request: logistic recalibration with a free
// intercept (Cox 1958, "Two further applications of a model for binary regression"). The odds of every estimate are
// multiplied by one factor, whose logarithm has a normal prior and follows the outcomes by one Newton step for each
// proposal. It keeps the drafter's own ranking, and learns from a handful of outcomes.
class Calibration {
public:
    double odds = 1.0;  // the factor

    // The calibrated probability.
    double believed(double estimate) const {
        const double p = std::min(estimate > kLeast ? estimate : kLeast, 1 - kLeast);  // what is no number is the least
        const double raised = odds * p;
        return raised / (1 - p + raised);
    }

    // The drafter has proposed this. It is kept side by side for `follow`, which comes after a pass.
    void hear(nb::object tokens, nb::handle parents, nb::handle estimates) {
        const Items above(parents), stated(estimates);
        if (above.size() != stated.size()) throw nb::value_error("parents and estimates are not equally long");
        nodes_.clear();
        for (size_t node = 0; node < above.size(); ++node) {
            nodes_.push_back({above.integer(node), stated.number(node)});
            if (nodes_.back().parent >= long(node)) throw nb::index_error("a node comes before its parent");
        }
        tokens_ = std::move(tokens);
    }

    // Per node of what was heard, the probability that it is reached and accepted.
    std::vector<double> gains() const {
        std::vector<double> gains;
        for (const auto& [parent, estimate] : nodes_) {
            const double p = believed(estimate);
            gains.push_back(parent >= 0 ? p * gains[size_t(parent)] : p);
        }
        return gains;
    }

    // What it would bring if there were no other proposal, where that is more than `least`: (value, gains, order), the
    // nodes with the greatest gains first; order is None where that is their own. Else None. See `allocate`.
    nb::object weigh(double room, nb::handle added, double worth, double least) const;

    // Tokens with these estimates were reached, and each was accepted or not.
    void learn(const std::vector<std::pair<double, bool>>& outcomes) {
        double surprise = 0, information = 0;
        for (const auto& [estimate, accepted] : outcomes) {
            const double p = believed(estimate);
            surprise += double(accepted) - p;
            information += p * (1 - p);
        }
        precision_ = std::min(precision_ + information, kMemory);
        log_ = std::clamp(log_ + surprise / precision_, -kFarthest, kFarthest);
        odds = std::exp(log_);
    }

    // The text went on with these tokens, whether or not what was heard was verified: the nodes whose turn came teach.
    // Whether one was right.
    bool follow(nb::handle committed) {
        const Items proposed(tokens_), text(committed);
        std::vector<std::pair<double, bool>> outcomes;
        long here = -1;
        size_t turn = 0;
        for (size_t node = 0; node < std::min(nodes_.size(), proposed.size()) && turn < text.size(); ++node) {
            if (nodes_[node].parent != here) continue;
            const int right = PyObject_RichCompareBool(proposed[node], text[turn], Py_EQ);
            if (right < 0) throw nb::python_error();
            outcomes.emplace_back(nodes_[node].estimate, right);
            if (right) here = long(node), ++turn;
        }
        learn(outcomes);
        return turn > 0;
    }

private:
    struct Node {
        long parent;
        double estimate;
    };

    std::vector<Node> nodes_;
    nb::object tokens_ = nb::tuple();
    double log_ = 0.0;
    double precision_ = kPrecision;
};

// What speculation has cost a request and what it has brought, in units of the request's own share of a plain step. From
// it follow two numbers: what may still be risked, and how fast the text is written, which is what time is worth.
class Ledger {
public:
    int tokens = 0;    // committed while decoding
    int steps = 0;     // taken for them
    double spent = 0;  // on drafting

    // prefill: what the prompt took.
    explicit Ledger(double prefill)
        : prefill_(std::min(prefill, kPrefill)), reading_(kBudget * (prefill - prefill_)) {}

    // A step committed so many tokens, and drafting added so much time to it.
    void enter(int committed, double added) {
        tokens += committed;
        ++steps;
        spent += added;
        const double time = 1 + added;
        recent_ += (committed - recent_ * time) / (kWindow + time);
    }

    // So many steps had no drafts: as `enter(1, 0)`, each time.
    void plain(int count) {
        tokens += count;
        steps += count;
        recent_ = 1 + (recent_ - 1) * std::pow(kWindow / (1 + kWindow), count);
    }

    // Whether a drafter may take so long to read the text before it drafts; see `read`.
    bool can_read(double time) const { return time <= room() + reading_ + kBudget * kComing; }

    // A drafter did. The target has read the prompt, too: a small part of what that took may be used for this.
    void read(double time) {
        const double free = std::min(time, reading_);
        reading_ -= free;
        spent += time - free;
    }

    // What a step may risk: the steps saved so far and a small part of all, less what was spent.
    double room() const { return tokens - steps - spent + kBudget * (tokens + prefill_); }

    // Tokens written in the time of a plain step of late; 1 to begin with, never below it.
    double rate() const { return std::max(1.0, recent_); }

private:
    double prefill_, reading_;
    double recent_ = 1.0;
};

struct Row {
    double gain;
    size_t request;
};

// How many rows each request gets, and the time that they add to those that were taken before. Rows are taken in the
// order given, and as many as make gains - worth x time greatest (`allocate` says what the arguments are).
void take(const std::vector<Row>& rows, std::vector<double>& rooms, const Items& added, double worth,
          std::vector<int>& best, std::vector<double>& best_times) {
    std::vector<int> counts(rooms.size());
    std::vector<double> times(rooms.size());
    best = counts, best_times = times;
    double value = 0, best_value = 0;
    size_t taken = 0;
    for (const auto& [gain, request] : rows) {
        if (taken + 1 >= added.size()) break;
        const double time = added.number(taken + 1) - added.number(taken);
        rooms[request] -= time;
        if (rooms[request] < 0) continue;  // nor is there room for what comes after it
        ++taken;
        ++counts[request];
        times[request] += time;
        value += gain - worth * time;
        if (value > best_value) best = counts, best_times = times, best_value = value;
    }
}

// Rows for the drafted tokens of a batch, those that gain most first. A drafted token is worth its gain, the probability
// that it is reached and accepted; a row costs time, and time is worth the tokens that would be written in it. (With the
// time's worth at the rate that comes of it, that maximises tokens per second in the long run: Dinkelbach 1967, "On
// nonlinear fractional programming".)
//   gains   per request, of its drafted tokens in descending order (along a path they descend by themselves).
//   rooms   per request, the most time that its rows may add.
//   added   added[j] is the time that j rows more than in the plain pass add to it; ascending from added[0] = 0. There
//           are no more rows than it knows of.
//   worth   tokens that are written in a unit of that time.
// Returns, per request, the number of its rows and the time that they add to those that were taken before.
std::pair<std::vector<int>, std::vector<double>> allocate(nb::handle gains, std::vector<double> rooms, nb::handle added,
                                                          double worth) {
    const Items requests(gains);
    if (rooms.size() < requests.size()) throw nb::value_error("a request has no room");
    rooms.resize(requests.size());
    std::vector<Row> rows;
    for (size_t i = 0; i < requests.size(); ++i) {
        const Items mine(nb::handle(requests[i]));
        for (size_t j = 0; j < mine.size(); ++j) rows.push_back({mine.number(j), i});
    }
    if (requests.size() > 1)  // of equals, the older request's first
        std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.gain > b.gain; });
    std::pair<std::vector<int>, std::vector<double>> found;
    take(rows, rooms, Items(added), worth, found.first, found.second);
    return found;
}

nb::object Calibration::weigh(double room, nb::handle added, double worth, double least) const {
    std::vector<double> gains = this->gains();
    const Items times(added);
    bool chain = true;
    for (size_t node = 0; node < gains.size(); ++node) chain &= nodes_[node].parent == long(node) - 1;
    std::vector<int> order;
    if (!chain) {
        for (size_t node = 0; node < gains.size(); ++node) order.push_back(int(node));
        std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return gains[size_t(a)] > gains[size_t(b)]; });
        std::vector<double> sorted;
        for (const int node : order) sorted.push_back(gains[size_t(node)]);
        gains.swap(sorted);
    }
    std::vector<Row> rows;
    for (const double gain : gains) rows.push_back({gain, 0});
    std::vector<double> rooms{room}, ignored;
    std::vector<int> counts;
    take(rows, rooms, times, worth, counts, ignored);
    double value = 0;
    for (int i = 0; i < counts[0]; ++i) value += gains[size_t(i)];
    value -= worth * times.number(size_t(counts[0]));
    if (!(value > least)) return nb::none();
    return nb::make_tuple(value, gains, chain ? nb::none() : nb::cast(order));
}

}  // namespace

void define_weighing(nb::module_& module) {
    nb::class_<Calibration>(module, "Calibration")
        .def(nb::init<>())
        .def_ro("odds", &Calibration::odds)
        .def("believed", &Calibration::believed, "estimate"_a)
        .def("hear", &Calibration::hear, "tokens"_a, "parents"_a, "estimates"_a)
        .def("gains", &Calibration::gains)
        .def("weigh", &Calibration::weigh, "room"_a, "added"_a, "worth"_a, "least"_a)
        .def("learn", &Calibration::learn, "outcomes"_a)
        .def("follow", &Calibration::follow, "committed"_a);
    nb::class_<Ledger>(module, "Ledger")
        .def(nb::init<double>(), "prefill"_a = 0.0)
        .def_ro("tokens", &Ledger::tokens)
        .def_ro("steps", &Ledger::steps)
        .def_ro("spent", &Ledger::spent)
        .def_prop_ro("room", &Ledger::room)
        .def_prop_ro("rate", &Ledger::rate)
        .def("enter", &Ledger::enter, "tokens"_a, "spent"_a)
        .def("plain", &Ledger::plain, "steps"_a)
        .def("can_read", &Ledger::can_read, "time"_a)
        .def("read", &Ledger::read, "time"_a);
    module.attr("BUDGET") = kBudget;
    module.def("allocate", &allocate, "gains"_a, "rooms"_a, "added"_a, "worth"_a);
}

}  // namespace outrider
