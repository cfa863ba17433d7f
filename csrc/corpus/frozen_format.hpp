// The layout of a frozen corpus file: what the builder, the reader and the verifier share.
//
// The text is every document followed by a boundary (-1), with one more boundary in front. A *rank* stands for one
// token of the text together with what precedes it in its document, read backwards: the order of ranks is the
// order of these reversed contexts (compared over max_context + 1 tokens, a document's start sorting last, ties in
// text order). So all occurrences of a context, of whatever length, are one interval of ranks, and the intervals of
// longer contexts lie inside those of shorter ones. For every rank the file holds
//
//   positions  where its token stands in the text
//   next       the token that follows it (-1: its document ends)
//   shared     how many tokens its context has in common with that of the rank before, at most max_context
//   origins    the ranks with token c, starts[c] .. starts[c + 1], come in the order of the contexts to which c was
//              appended: origins[j] is that context's rank (all ranks whose next is c, ascending; then, for
//              documents that begin with c, the number of ranks). One binary search appends a token to a context.
//
// An interval of more than `heavy` ranks is a *node*: its continuations are counted once, at build time. Nodes are
// in order of `hi`, inner before outer, each with its parent. `directory` and `landmarks` sample every 64th rank.
#pragma once
#include <cstdint>

namespace foresay {

struct Continuation {
    int32_t token;
    uint32_t count;
};

namespace frozen {

inline constexpr char kMagic[8] = {'F', 'O', 'R', 'E', 'S', 'A', 'Y', '\x1a'};
inline constexpr uint32_t kVersion = 1;
inline constexpr uint32_t kEndianMark = 0x01020304;
inline constexpr uint64_t kAlignment = 64;

inline constexpr int32_t kBoundary = -1;
inline constexpr uint32_t kNone = UINT32_MAX;
inline constexpr uint32_t kStride = 64;             // ranks per landmark and per directory entry
inline constexpr uint32_t kTop = 8;                 // continuations kept per node
inline constexpr uint32_t kLeastHeavy = 64;         // intervals up to `heavy` ranks are counted when asked for;
inline constexpr uint32_t kMostHeavy = 512;         // the builder doubles it while nodes would take too much room
inline constexpr uint64_t kNodeBytesPerToken = 4;
inline constexpr uint64_t kMostPositions = UINT32_MAX - 1;
inline constexpr uint32_t kMostVocabulary = 1u << 24;
inline constexpr uint32_t kMostContext = 254;

enum Section : uint32_t {
    kText, kStarts, kPositions, kNext, kShared, kOrigins, kLandmarks, kDirectory, kNodes, kTallies, kSections
};
inline constexpr const char* kSectionNames[kSections] = {
    "text", "starts", "positions", "next", "shared", "origins", "landmarks", "directory", "nodes", "tallies"};

struct SectionEntry {
    uint64_t offset, length, checksum;
};

struct Header {
    char magic[8];
    uint32_t version, endian_mark;
    uint64_t file_length, tokens, documents;
    uint32_t vocabulary, max_context, heavy, num_sections;
    uint8_t tokenizer_hash[32];
    SectionEntry sections[kSections];
    uint8_t reserved[176];                          // zero
    uint64_t checksum;                              // of all bytes before it
};
static_assert(sizeof(Header) == 512);

struct Node {
    uint32_t lo, hi, parent, depth;                 // parent: a larger index, or kNone
};

struct Tally {
    uint32_t total;                                 // occurrences that a token follows
    uint32_t distinct;                              // different tokens among those
    uint32_t first, latest;                         // positions of the first and last such occurrence, or kNone
    int32_t first_token, latest_token;              // what follows there, or kBoundary
    Continuation top[kTop];                         // by falling count, then token; unused: {kBoundary, 0}
};
static_assert(sizeof(Node) == 16 && sizeof(Tally) == 88);

inline uint64_t blocks_of(uint64_t ranks) { return (ranks + kStride - 1) / kStride; }

/// The one valid length in bytes of a section.
inline uint64_t section_length(const Header& header, uint64_t num_nodes, uint32_t section) {
    const uint64_t n = header.tokens;
    switch (section) {
        case kText: return 4 * (n + header.documents + 1);
        case kStarts: return 4 * (uint64_t{header.vocabulary} + 1);
        case kShared: return n;
        case kLandmarks: return 4 * blocks_of(n);
        case kDirectory: return 4 * (blocks_of(n) + 1);
        case kNodes: return num_nodes * sizeof(Node);
        case kTallies: return num_nodes * sizeof(Tally);
        default: return 4 * n;
    }
}

/// The one order in which continuations are listed.
inline bool listed_before(const Continuation& a, const Continuation& b) {
    return a.count != b.count ? a.count > b.count : a.token < b.token;
}

/// Inserts into the `size` best of at most `capacity` continuations.
inline uint32_t keep_best(Continuation* best, uint32_t size, uint32_t capacity, Continuation candidate) {
    if (size == capacity) {
        if (size == 0 || !listed_before(candidate, best[size - 1])) return size;
        --size;
    }
    uint32_t place = size;
    for (; place > 0 && listed_before(candidate, best[place - 1]); --place) best[place] = best[place - 1];
    best[place] = candidate;
    return size + 1;
}

/// Finds the nodes of `shared`: calls close(lo, hi, depth, last_child) -> id for every interval of more than `heavy`
/// ranks, inner before outer, and link(id, previous_sibling) when it has a parent; last_child heads that chain.
template <class Close, class Link>
void for_each_node(const uint8_t* shared, uint64_t ranks, uint32_t heavy, Close&& close, Link&& link) {
    struct Open {
        uint32_t lo, depth, last_child;
    };
    Open stack[257] = {{0, 0, kNone}};              // depths rise strictly and fit in a byte
    Open* top = stack;
    for (uint64_t k = 1; k <= ranks; ++k) {
        const uint32_t depth = k < ranks ? shared[k] : 0;
        auto lo = static_cast<uint32_t>(k - 1);
        while (top->depth > depth) {
            const Open closed = *top--;
            lo = closed.lo;
            uint32_t id = kNone;
            if (k - lo > heavy) id = close(lo, static_cast<uint32_t>(k), closed.depth, closed.last_child);
            if (top->depth < depth) *++top = {lo, depth, kNone};
            if (id != kNone && top->depth > 0) {
                link(id, top->last_child);
                top->last_child = id;
            }
        }
        if (top->depth < depth) *++top = {lo, depth, kNone};
    }
}

}  // namespace frozen
}  // namespace foresay
