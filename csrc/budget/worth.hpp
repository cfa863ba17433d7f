// What stated chances are worth: the arithmetic of src/foresay/budget/calibration.py, which is done in every step.
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

#include "drafts.hpp"
#include "matrix.hpp"

namespace foresay {

/// What the verified nodes of one tenant taught, by the class of their stated chance. `edges` (rising) divide a score over its
/// parent's into classes, one more than edges, first those of nodes without a parent, then those of the others. `prior`: nodes
/// without a gap; `memory`: nodes of a class that count.
/// Throws InputError for edges that do not rise, a prior that is not above 0, and a memory of less than 1.
class ClassTable {
public:
    ClassTable(std::vector<double> edges, double prior, double memory);

    size_t classes() const noexcept { return gap_.size(); }
    size_t class_of(double stated, bool below) const noexcept;
    double gap(size_t kind) const noexcept { return gap_[kind]; }
    /// A node of this class was tested.
    void test(size_t kind, double stated, bool accepted) noexcept;
    /// Ends a step: what was tested in it counts from now on.
    void settle() noexcept;

private:
    std::vector<double> edges_, seen_, beyond_, gap_;  // beyond: accepted nodes more than were stated
    std::vector<double> counts_, more_;                // the present step's
    double prior_, fades_;
};

/// What to multiply the chances of a request's nodes by, at most 1: how often the first tokens of its last drafts were accepted over
/// how often that was expected. `prior`: drafts as good as expected; `memory`: drafts that count; `most`: requests that are remembered.
/// Throws InputError for a prior that is not above 0, and a memory or a number of requests of less than 1.
class RequestFactors {
public:
    RequestFactors(double prior, double memory, size_t most);

    std::vector<double> of(std::span<const int64_t> ids) const;
    void observe(int64_t id, double expected, double accepted);
    /// Forgets those that were observed least recently.
    void forget();

private:
    struct Request {
        double expected, accepted, factor;
        std::list<int64_t>::iterator place;
    };
    std::unordered_map<int64_t, Request> requests_;
    std::list<int64_t> order_;  // the least recently observed first
    double prior_, fades_;
    size_t most_;
};

using ClassTables = std::span<ClassTable* const>;

/// The chance of each node, never above its parent's: the product along its path of what is stated and the gap of its class. `rows`:
/// which of the tables each draft's nodes belong to. Throws InputError for drafts without scores, sizes that do not fit, and a table
/// that is not there.
std::vector<double> calibrated(const Drafts& drafts, ClassTables tables, std::span<const int32_t> rows);

/// Learns from verified nodes: those whose parent was accepted were tested. `ids`: of each draft's request, for the factors, which
/// may be null. Throws InputError as `calibrated`; nothing was learned then.
void learn(const Drafts& drafts, std::span<const bool> accepted, ClassTables tables, std::span<const int32_t> rows, RequestFactors* factors,
           std::span<const int64_t> ids);

/// Follows, by place in the draft below `asked`, how many nodes of a request were verified (the first row of `means`) and accepted (the
/// second): each moves by `rate` towards what is seen of `nodes`, their places, of that many requests.
/// Throws InputError for sizes that do not fit, a place below 0, and a rate outside 0 to 1.
void follow_places(Matrix<double> means, std::span<const int32_t> nodes, std::span<const bool> accepted, size_t asked, size_t requests, double rate);

}  // namespace foresay
