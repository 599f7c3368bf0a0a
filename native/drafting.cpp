// Drafting from repetition: where did the end of this text stand before, and what followed it there?
// `drafters/suffix.py` says what is proposed; here are the index of a text, the table of followers, and the tree.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "drafting.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Tokens = std::span<const int32_t>;

constexpr int kOrders[] = {4, 2, 1};  // lengths of the n-grams by which occurrences are found, longest first
constexpr int kOccurrences = 16;      // how many of the latest occurrences vote
constexpr int kLongest = 16;          // how far back an occurrence is compared with the end of the text
constexpr int kChoices = 3;           // tokens that occurrences may propose at one place
constexpr double kLeast = 0.01;       // nodes that are reached with less probability are not worth looking at
constexpr int32_t kSeparator = -1;    // between texts; as no token, it is never drafted and ends every match

// A place in a text after something that also stands at the end of another, and how many tokens match before it.
struct Occurrence {
    const std::vector<int32_t>* text;
    int32_t at;
    int32_t match;
};

// The latest position of each n-gram of a text: a hash table of positions, whose keys are the tokens that end there.
class Latest {
public:
    explicit Latest(int n) : n_(n), places_(64, -1) {}

    int order() const { return n_; }

    int32_t find(const std::vector<int32_t>& text, const int32_t* gram) const { return places_[slot(text, gram)]; }

    // Replaces the position of the n-gram that ends at `position`; the one before, or -1.
    int32_t replace(const std::vector<int32_t>& text, int32_t position) {
        if (2 * ++count_ > places_.size()) grow(text);
        int32_t& place = places_[slot(text, text.data() + position + 1 - n_)];
        count_ -= place >= 0;
        return std::exchange(place, position);
    }

private:
    size_t slot(const std::vector<int32_t>& text, const int32_t* gram) const {
        uint64_t hash = 0;
        for (int i = 0; i < n_; ++i) hash = (hash ^ uint32_t(gram[i])) * 0x9e3779b97f4a7c15u;
        const size_t mask = places_.size() - 1;
        for (size_t at = (hash >> 32) & mask;; at = (at + 1) & mask)
            if (places_[at] < 0 || std::equal(gram, gram + n_, text.data() + places_[at] + 1 - n_)) return at;
    }

    void grow(const std::vector<int32_t>& text) {
        std::vector<int32_t> old(2 * places_.size(), -1);
        old.swap(places_);
        for (const int32_t position : old)
            if (position >= 0) places_[slot(text, text.data() + position + 1 - n_)] = position;
    }

    int n_;
    size_t count_ = 0;
    std::vector<int32_t> places_;
};

// Where the n-grams of a growing text occurred: their latest occurrences, and from each occurrence the one before it.
class Index {
public:
    void append(nb::sequence tokens) { take(tokens, 0); }

    // Takes in what `tokens`, the whole text so far, has beyond what is known.
    void extend(nb::sequence tokens) { take(tokens, Py_ssize_t(text_.size())); }

    size_t length() const { return text_.size(); }

    Tokens end() const { return Tokens(text_).last(std::min<size_t>(text_.size(), kLongest)); }

    // Adds the latest occurrences of the longest n-gram at the end of `suffix` that a token followed.
    void find(Tokens suffix, std::vector<Occurrence>& found) const {
        const size_t before = found.size();
        for (const Chain& chain : chains_) {
            const auto n = size_t(chain.latest.order());
            if (n > suffix.size()) continue;
            int32_t position = chain.latest.find(text_, suffix.data() + suffix.size() - n);
            for (int i = 0; i < kOccurrences && position >= 0; ++i, position = chain.earlier[position]) {
                const int32_t at = position + 1;
                if (size_t(at) < text_.size() && text_[at] != kSeparator) found.push_back({&text_, at, common(suffix, at)});
            }
            if (found.size() > before) return;
        }
    }

private:
    struct Chain {
        Latest latest;
        std::vector<int32_t> earlier = {};
    };

    void take(nb::sequence tokens, Py_ssize_t first) {
        const nb::object items = nb::steal(PySequence_Fast(tokens.ptr(), "tokens are a sequence"));
        if (!items.is_valid()) throw nb::python_error();
        const auto count = PySequence_Fast_GET_SIZE(items.ptr());
        for (Py_ssize_t i = first; i < count; ++i) {
            text_.push_back(nb::cast<int32_t>(nb::handle(PySequence_Fast_GET_ITEM(items.ptr(), i))));
            const auto position = int32_t(text_.size()) - 1;
            for (Chain& chain : chains_) {
                const bool whole = position + 1 >= chain.latest.order();
                chain.earlier.push_back(whole ? chain.latest.replace(text_, position) : -1);
            }
        }
    }

    int32_t common(Tokens suffix, int32_t at) const {
        const auto most = std::min<int32_t>({kLongest, int32_t(suffix.size()), at});
        int32_t match = 0;
        while (match < most && text_[at - 1 - match] == suffix[suffix.size() - 1 - match]) ++match;
        return match;
    }

    std::vector<int32_t> text_;
    Chain chains_[3] = {{Latest(kOrders[0])}, {Latest(kOrders[1])}, {Latest(kOrders[2])}};
};

// What follows the n-grams of a language, or of a model's way of speaking: read from a file, the same for all texts.
class Followers {
public:
    using Keys = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
    using Ids = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
    using Chances = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

    static constexpr int kBits = 21;           // of each token in a key
    static constexpr size_t kFollowers = 8;    // of an n-gram, at most

    // Longest n-grams first, as `add`ed.
    void add(int order, Keys keys, Ids tokens, Chances chances) {
        if (order < 1 || order > 3 || tokens.shape(0) != keys.shape(0) || chances.shape(0) != keys.shape(0) ||
            chances.shape(1) != tokens.shape(1))
            throw std::invalid_argument("followers: shapes do not agree");
        if (tables_.size() == 3 || tokens.shape(1) > kFollowers || keys.shape(0) > size_t(INT32_MAX))
            throw std::invalid_argument("followers: too many");
        Table& table = tables_.emplace_back(Table{size_t(order), {}, {}});
        table.rows.resize(keys.shape(0));
        table.places.resize(std::bit_ceil(2 * keys.shape(0) + 1));
        for (size_t i = 0; i < keys.shape(0); ++i) {
            Row& row = table.rows[i];
            row.key = keys.data()[i];
            std::copy_n(tokens.data() + i * tokens.shape(1), tokens.shape(1), row.tokens);
            std::copy_n(chances.data() + i * tokens.shape(1), tokens.shape(1), row.chances);
            table.places[table.slot(row.key)] = {int32_t(i), uint32_t(Table::hash(row.key))};
        }
    }

    // Calls say(token, chance) for what follows the longest n-gram at the end of `suffix` that is known.
    template <typename Say>
    void after(Tokens suffix, Say say) const {
        int64_t keys[3];
        for (size_t i = 0; i < tables_.size(); ++i)  // memory is far away: all tables are asked for at once
            if (suffix.size() >= tables_[i].order) {
                keys[i] = 0;
                for (const int32_t token : suffix.last(tables_[i].order)) keys[i] = keys[i] << kBits | token;
                __builtin_prefetch(&tables_[i].places[tables_[i].first(keys[i])]);
            }
        for (size_t i = 0; i < tables_.size(); ++i) {
            const Table& table = tables_[i];
            if (suffix.size() < table.order) continue;
            const int32_t place = table.places[table.slot(keys[i])].row;
            if (place < 0) continue;
            const Row& row = table.rows[size_t(place)];
            for (size_t j = 0; j < kFollowers && row.chances[j] > 0; ++j) say(row.tokens[j], row.chances[j] / 256.0);
            return;
        }
    }

private:
    struct Place {
        int32_t row = -1;
        uint32_t mark = 0;  // of the key: most others are told by it
    };

    struct Row {  // all of it lies together: what is not in the caches is dear, and more so in another page
        int64_t key;
        int32_t tokens[kFollowers];
        uint8_t chances[kFollowers];  // 0 after the last one
    };

    // The rows of one order, and a hash table of them: to look for a key in order would touch far more memory.
    struct Table {
        size_t order;
        std::vector<Row> rows;
        std::vector<Place> places;

        static uint64_t hash(int64_t key) { return uint64_t(key) * 0x9e3779b97f4a7c15u; }

        size_t first(int64_t key) const { return (hash(key) >> 32) & (places.size() - 1); }

        size_t slot(int64_t key) const {
            const auto mark = uint32_t(hash(key));
            for (size_t at = first(key);; at = (at + 1) & (places.size() - 1)) {
                const Place& place = places[at];
                if (place.row < 0 || (place.mark == mark && rows[size_t(place.row)].key == key)) return at;
            }
        }
    };

    std::vector<Table> tables_;
};

struct Choice {
    int32_t token;
    double estimate;
};

// The most likely first; of equals, the one that came first. (An insertion sort: they are few, and nothing is allocated.)
void sort(std::vector<Choice>& choices) {
    for (size_t i = 1; i < choices.size(); ++i) {
        const Choice choice = choices[i];
        size_t place = i;
        for (; place > 0 && choices[place - 1].estimate < choice.estimate; --place) choices[place] = choices[place - 1];
        choices[place] = choice;
    }
}

// The votes that silence has beside a longest match of so many tokens.
double silence_beside(int32_t longest) {
    static const std::array<double, 2 * kLongest> known = [] {
        std::array<double, 2 * kLongest> votes{1.0};  // where there is no match, all
        for (size_t n = 1; n < votes.size(); ++n) votes[n] = 3 * std::pow(n, -1.5);
        return votes;
    }();
    return size_t(longest) < known.size() ? known[size_t(longest)] : 3 * std::pow(longest, -1.5);
}

// How often what the occurrences say comes true, as a share of what their votes say: where all of them say the same, where
// there is but one, and where they disagree; there a runner-up as well. Chosen on answers of the default model (docs/drafters.md).
constexpr double kAgreed = 1.0, kAlone = 0.85, kDisputed = 0.7, kRunnerUp = 0.6;

// The most likely next tokens: occurrences vote with 2^(match - longest), and what silence has goes to the followers.
void choose(std::span<const Occurrence> occurrences, const Followers* followers, Tokens suffix,
            std::vector<Choice>& choices) {
    choices.clear();
    int32_t longest = 0;
    for (const Occurrence& o : occurrences) longest = std::max(longest, o.match);
    double total = 0;
    for (const Occurrence& o : occurrences) {
        const int32_t token = (*o.text)[o.at];
        const double vote = std::ldexp(1.0, o.match - longest);
        const auto same = [&](const Choice& choice) { return choice.token == token; };
        const auto known = std::find_if(choices.begin(), choices.end(), same);
        if (known == choices.end()) choices.push_back({token, vote});
        else known->estimate += vote;
        total += vote;
    }
    sort(choices);  // of equals, the later occurrence comes first
    const double first = choices.size() > 1 ? kDisputed : occurrences.size() == 1 ? kAlone : kAgreed;
    if (choices.size() > kChoices) choices.resize(kChoices);
    const double silence = silence_beside(longest);
    total += silence;
    for (size_t i = 0; i < choices.size(); ++i) choices[i].estimate *= (i == 0 ? first : kRunnerUp) / total;
    if (followers == nullptr) return;
    followers->after(suffix, [&](int32_t token, double chance) {
        const double estimate = chance * silence / total;
        for (Choice& choice : choices)
            if (choice.token == token) return void(choice.estimate += estimate);
        choices.push_back({token, estimate});
    });
    sort(choices);
}

// A node that the tree may get, and what is needed to go on from it.
struct Candidate {
    double gain;  // the probability that it is reached and accepted
    int32_t token;
    int parent;
    double estimate;
};

// The last tokens of a way through the tree: as many as are ever compared.
struct Way {
    std::array<int32_t, kLongest> tokens;
    size_t length;

    explicit Way(Tokens end) : length(end.size()) { std::copy(end.begin(), end.end(), tokens.begin()); }

    Tokens suffix() const { return Tokens(tokens).first(length); }

    void add(int32_t token) {
        if (length == tokens.size()) std::shift_left(tokens.begin(), tokens.end(), 1);
        else ++length;
        tokens[length - 1] = token;
    }
};

struct Node {
    Candidate is;
    Way way;
    size_t first, last;  // of the occurrences of that way
};

// A tree of at most `count` nodes after the end of `own`, most probable first: (tokens, parents, estimates). `odds` is a
// factor on the odds of every estimate.
nb::tuple grow(const Index& own, nb::sequence others, const Followers* followers, int count, double odds) {
    std::vector<const Index*> indices{&own};
    for (nb::handle other : others) indices.push_back(nb::cast<const Index*>(other));
    std::vector<Occurrence> occurrences;  // of all nodes, one after the other
    std::vector<Candidate> candidates;    // in the order in which they came
    std::vector<Node> nodes;
    std::vector<Choice> choices;
    occurrences.reserve(256);
    candidates.reserve(128);
    nodes.reserve(size_t(std::max(count, 0)));
    const auto look = [&](int parent, double gain, Tokens suffix, size_t first) {
        if (occurrences.size() == first)  // all of them end with the text: start over, as a loop would
            for (const Index* index : indices) index->find(suffix, occurrences);
        choose(std::span(occurrences).subspan(first), followers, suffix, choices);
        for (const Choice& choice : choices) {
            const double raised = odds * choice.estimate, estimate = raised / (1 - choice.estimate + raised);
            if (gain * estimate >= kLeast) candidates.push_back({gain * estimate, choice.token, parent, estimate});
        }
    };
    const Way end(own.end());
    look(-1, 1.0, end.suffix(), 0);
    const size_t found = occurrences.size();
    while (!candidates.empty() && int(nodes.size()) < count) {
        const auto rarer = [](const Candidate& a, const Candidate& b) { return a.gain < b.gain; };
        const auto best = std::max_element(candidates.begin(), candidates.end(), rarer);  // of equals, the first
        const Candidate is = *best;
        candidates.erase(best);
        const Node* parent = is.parent < 0 ? nullptr : &nodes[size_t(is.parent)];
        const size_t first = occurrences.size();
        for (size_t i = parent ? parent->first : 0; i < (parent ? parent->last : found); ++i) {
            const Occurrence o = occurrences[i];
            if ((*o.text)[o.at] == is.token && size_t(o.at) + 1 < o.text->size() && (*o.text)[o.at + 1] != kSeparator)
                occurrences.push_back({o.text, o.at + 1, o.match + 1});
        }
        Node& node = nodes.emplace_back(Node{is, parent ? parent->way : end, first, 0});
        node.way.add(is.token);
        if (int(nodes.size()) < count) look(int(nodes.size()) - 1, is.gain, node.way.suffix(), first);
        node.last = occurrences.size();
    }
    const auto each = [&](auto of) {
        nb::object items = nb::steal(PyTuple_New(Py_ssize_t(nodes.size())));
        for (size_t i = 0; i < nodes.size(); ++i)
            PyTuple_SET_ITEM(items.ptr(), Py_ssize_t(i), nb::cast(of(nodes[i].is)).release().ptr());
        return items;
    };
    return nb::make_tuple(each([](const Candidate& is) { return is.token; }),
                          each([](const Candidate& is) { return is.parent; }),
                          each([](const Candidate& is) { return is.estimate; }));
}

}  // namespace

NB_MODULE(_drafting, module) {
    nb::class_<Index>(module, "Index")
        .def(nb::init<>())
        .def("append", &Index::append, "tokens"_a)
        .def("extend", &Index::extend, "tokens"_a)
        .def("__len__", &Index::length);
    nb::class_<Followers>(module, "Followers")
        .def(nb::init<>())
        .def("add", &Followers::add, "order"_a, "keys"_a, "tokens"_a, "chances"_a);
    module.def("grow", &grow, "own"_a, "others"_a, "followers"_a.none(), "count"_a, "odds"_a = 1.0);
    outrider::define_weighing(module);
}
