// The full check of a corpus file: every checksum, then every promise of frozen_format.hpp, against its definition.
// Checks run in an order in which each may rely on those before it.
#include <cstring>
#include <vector>

#include "corpus/checksum.hpp"
#include "corpus/frozen_build.hpp"

namespace foresay {

using namespace frozen;

namespace {

[[noreturn]] void broken(const std::string& path, const char* section, uint64_t at, const char* why) {
    throw CorpusError("'", path, "' is damaged: its section '", section, "' is wrong at element ", at, ": ", why, ".");
}

}  // namespace

void FrozenIndex::verify() const {
    for (uint32_t i = 0; i < kSections; ++i) {
        const SectionEntry& entry = header_.sections[i];
        const uint64_t found = checksum(file_.data() + entry.offset, entry.length);
        if (found != entry.checksum)
            throw CorpusError("'", path_, "' is damaged: its section '", kSectionNames[i], "' has checksum ", found, " where ",
                              entry.checksum, " is recorded.");
    }
    uint64_t end = sizeof(Header);  // sections stand in order; between them are zeros
    for (uint32_t i = 0; i <= kSections; ++i) {
        const uint64_t next = i < kSections ? header_.sections[i].offset : file_.size();
        for (; end < next; ++end)
            if (file_.data()[end] != 0)
                throw CorpusError("'", path_, "' is damaged: its byte ", end, " lies between sections and is not 0.");
        if (i < kSections) end = next + header_.sections[i].length;
    }
    verify_text();
    verify_ranks();
    verify_origins();
    verify_nodes();
}

void FrozenIndex::verify_text() const {
    std::vector<uint64_t> counts(header_.vocabulary);
    uint64_t boundaries = 0;
    for (uint64_t i = 0; i < text_.size(); ++i) {
        const int32_t token = text_[i];
        if (token == kBoundary) {
            if (i > 0 && text_[i - 1] == kBoundary) broken(path_, "text", i, "a document is empty");
            ++boundaries;
        } else if (token < 0 || static_cast<uint32_t>(token) >= header_.vocabulary) {
            broken(path_, "text", i, "the token is outside the vocabulary");
        } else {
            ++counts[token];
        }
    }
    if (text_.front() != kBoundary || text_.back() != kBoundary || boundaries != header_.documents + 1)
        broken(path_, "text", 0, "the boundaries do not enclose as many documents as the header says");
    uint64_t start = 0;
    for (uint32_t token = 0; token < header_.vocabulary; start += counts[token++])
        if (starts_[token] != start) broken(path_, "starts", token, "it is not the number of smaller tokens");
    if (starts_.back() != num_ranks_) broken(path_, "starts", header_.vocabulary, "it is not the number of tokens");
}

void FrozenIndex::verify_ranks() const {
    std::vector<bool> seen(text_.size());
    const uint32_t depth = header_.max_context + 1;
    for (uint64_t rank = 0; rank < num_ranks_; ++rank) {
        const uint32_t position = positions_[rank];
        if (position >= text_.size() || text_[position] == kBoundary || seen[position])
            broken(path_, "positions", rank, "it is not the position of a token that no other rank has");
        seen[position] = true;
        if (next_[rank] != text_[position + 1]) broken(path_, "next", rank, "another token follows in the text");
        if (rank == 0) continue;
        const uint32_t before = positions_[rank - 1];
        const uint32_t length = common(before, position, depth);
        // A boundary, read without its sign, sorts after every token. Equal contexts end together.
        const auto smaller = static_cast<uint32_t>(text_[before - length]);
        const auto larger = static_cast<uint32_t>(text_[position - length]);
        const bool ordered = length == depth || smaller == larger ? before < position : smaller < larger;
        if (!ordered) broken(path_, "positions", rank, "the contexts are not in order");
        if (shared_[rank] != std::min(length, header_.max_context))
            broken(path_, "shared", rank, "the contexts share another number of tokens");
    }
    if (shared_[0] != 0) broken(path_, "shared", 0, "nothing stands before the first rank");
}

void FrozenIndex::verify_origins() const {
    for (uint32_t token = 0; token < header_.vocabulary; ++token)
        for (uint64_t rank = starts_[token]; rank < starts_[token + 1]; ++rank) {
            const uint32_t origin = origins_[rank];
            const bool first = rank == starts_[token];
            if (origin == num_ranks_ ? text_[positions_[rank] - 1] != kBoundary
                                     : origin > num_ranks_ || next_[origin] != static_cast<int32_t>(token) ||
                                           (!first && origins_[rank - 1] >= origin))
                broken(path_, "origins", rank, "it is not the next rank that the token follows");
            // As many origins as the token has predecessors: a document's start has none, and only that.
            if (origin != num_ranks_ && text_[positions_[rank] - 1] == kBoundary)
                broken(path_, "origins", rank, "the token begins its document");
        }
    for (uint64_t block = 0; block < landmarks_.size(); ++block)
        if (landmarks_[block] != origins_[block * kStride])
            broken(path_, "landmarks", block, "it is not the origin at its rank");
}

void FrozenIndex::verify_nodes() const {
    uint64_t made = 0;
    std::vector<uint32_t> counts(header_.vocabulary);
    std::vector<int32_t> seen;
    const auto none = [](uint32_t, uint32_t) {};
    for_each_node(shared_.data(), num_ranks_, header_.heavy, [&](uint32_t lo, uint32_t hi, uint32_t depth, uint32_t) {
        if (made >= nodes_.size()) broken(path_, "nodes", made, "a node is missing");
        const Node& node = nodes_[made];
        if (node.lo != lo || node.hi != hi || node.depth != depth)
            broken(path_, "nodes", made, "it is not the next heavy interval");
        const Tally tally = tally_of(node, next_.data(), positions_.data(), counts, seen);
        if (std::memcmp(&tally, &tallies_[made], sizeof tally) != 0)
            broken(path_, "tallies", made, "the continuations are counted wrong");
        return static_cast<uint32_t>(made++);
    }, none);
    if (made != nodes_.size()) broken(path_, "nodes", made, "there is no such heavy interval");
    for (uint32_t i = 0; i < nodes_.size(); ++i) {
        // The parent is the first later node that encloses this one; without one the interval is outermost.
        const uint32_t parent = nodes_[i].parent;
        const uint32_t depth = outer_depth({nodes_[i].lo, nodes_[i].hi});
        if (depth == 0 ? parent != kNone
                       : parent <= i || parent >= nodes_.size() || nodes_[parent].depth != depth ||
                             nodes_[parent].lo > nodes_[i].lo || nodes_[parent].hi < nodes_[i].hi)
            broken(path_, "nodes", i, "its parent is not the interval around it");
    }
    uint32_t node = 0;
    for (uint64_t block = 0; block < directory_.size(); ++block) {
        while (node < nodes_.size() && nodes_[node].hi <= block * kStride) ++node;
        if (directory_[block] != node) broken(path_, "directory", block, "it is not the first node that ends later");
    }
}

}  // namespace foresay
