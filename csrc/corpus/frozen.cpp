#include "corpus/frozen.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "corpus/checksum.hpp"

namespace foresay {

using namespace frozen;

namespace {

template <class... Words>
[[noreturn]] void refuse(const std::string& path, const Words&... why) {
    throw CorpusError("'", path, "' cannot be used as a corpus file: ", why...);
}

std::string hex(const uint8_t* bytes, size_t length) {
    std::string text;
    for (size_t i = 0; i < length; ++i)
        for (int shift : {4, 0}) text += "0123456789abcdef"[bytes[i] >> shift & 15];
    return text;
}

void check_header(const std::string& path, const Header& header, uint64_t file_length) {
    const auto shown = [](const char (&magic)[8]) { return hex(reinterpret_cast<const uint8_t*>(magic), 8); };
    if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0)
        refuse(path, "it begins with the bytes ", shown(header.magic), " where a corpus file has ", shown(kMagic), ".");
    if (header.endian_mark != kEndianMark)
        refuse(path, "its byte order mark is ", header.endian_mark, " where this machine needs ", kEndianMark,
               "; build it on a machine with the same byte order.");
    if (header.version != kVersion)
        refuse(path, "it has format version ", header.version, " and this release reads version ", kVersion, "; build it again.");
    const uint64_t found = checksum(&header, offsetof(Header, checksum));
    if (found != header.checksum)
        refuse(path, "its header has checksum ", found, " where ", header.checksum, " is recorded, so it is damaged.");
    if (header.file_length != file_length)
        refuse(path, "it has ", file_length, " bytes where its header says ", header.file_length, "; it was truncated or extended.");
    const bool sane = header.tokens > 0 && header.tokens <= kMostPositions && header.documents > 0 &&
                      header.documents <= header.tokens && header.tokens + header.documents < kMostPositions &&
                      header.vocabulary > 0 && header.vocabulary <= kMostVocabulary && header.max_context > 0 &&
                      header.max_context <= kMostContext && header.heavy >= kLeastHeavy &&
                      header.heavy <= kMostHeavy && std::has_single_bit(header.heavy) &&
                      header.num_sections == kSections;
    if (!sane) refuse(path, "a count in its header is outside the valid range, so no release of foresay wrote it.");
    const uint64_t num_nodes = header.sections[kNodes].length / sizeof(Node);
    for (uint32_t i = 0; i < kSections; ++i) {
        const SectionEntry& section = header.sections[i];
        if (section.offset % kAlignment != 0 || section.offset < sizeof(Header) || section.offset > file_length ||
            section.length > file_length - section.offset || section.length != section_length(header, num_nodes, i))
            refuse(path, "its section '", kSectionNames[i], "' at offset ", section.offset, " with ", section.length,
                   " bytes does not fit the file's ", file_length, " bytes and ", header.tokens, " tokens.");
    }
}

}  // namespace

template <class T>
void FrozenIndex::attach(std::span<const T>& to, uint32_t section) const {
    const SectionEntry& entry = header_.sections[section];
    to = {reinterpret_cast<const T*>(file_.data() + entry.offset), entry.length / sizeof(T)};
}

FrozenIndex FrozenIndex::open(const std::string& path, const std::optional<TokenizerHash>& expected) {
    struct Descriptor {
        int number;
        ~Descriptor() { if (number >= 0) close(number); }
    } descriptor{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
    struct stat status {};
    if (descriptor.number < 0 || fstat(descriptor.number, &status) != 0)
        refuse(path, "it cannot be opened (", std::strerror(errno), ").");
    if (!S_ISREG(status.st_mode)) refuse(path, "it is not a regular file.");
    const auto file_length = static_cast<uint64_t>(status.st_size);
    if (file_length < sizeof(Header))
        refuse(path, "it has ", file_length, " bytes and a corpus file has at least ", sizeof(Header), ".");
    FrozenIndex index;
    index.path_ = path;
    index.file_ = MappedFile(descriptor.number, file_length, MappedFile::Access::kRead, path);
    std::memcpy(&index.header_, index.file_.data(), sizeof(Header));
    check_header(path, index.header_, file_length);
    if (expected && std::memcmp(expected->data(), index.header_.tokenizer_hash, expected->size()) != 0)
        throw TokenizerMismatch("'", path, "' was built with the tokenizer ", hex(index.header_.tokenizer_hash, 32), " and is used with ",
                                hex(expected->data(), 32), "; build it again with that tokenizer.");
    index.num_ranks_ = index.header_.tokens;
    index.attach(index.text_, kText);
    index.attach(index.starts_, kStarts);
    index.attach(index.positions_, kPositions);
    index.attach(index.next_, kNext);
    index.attach(index.shared_, kShared);
    index.attach(index.origins_, kOrigins);
    index.attach(index.landmarks_, kLandmarks);
    index.attach(index.directory_, kDirectory);
    index.attach(index.nodes_, kNodes);
    index.attach(index.tallies_, kTallies);
    return index;
}

void FrozenIndex::cut() const { refuse(path_, "it was truncated while it was open; open it again when it is whole."); }

void FrozenIndex::damaged(const char* what, uint64_t found, uint64_t limit) const {
    check_whole();
    refuse(path_, "it is damaged: ", what, " is ", found, " where less than ", limit, " is valid.");
}

void FrozenIndex::check(const Cursor& cursor) const {
    check_whole();
    if (cursor.lo >= cursor.hi || cursor.hi > num_ranks_ || cursor.length > header_.max_context)
        throw InputError("The cursor with ranks ", cursor.lo, " to ", cursor.hi, " and length ", cursor.length, " is not of '", path_,
                         "', which has ", num_ranks_, " ranks and contexts of at most ", header_.max_context, " tokens.");
}

FrozenIndex::Interval FrozenIndex::bucket(int32_t token) const {
    if (token < 0 || static_cast<uint32_t>(token) >= header_.vocabulary) return {0, 0};
    const uint32_t end = below(starts_[token + 1], num_ranks_ + 1, "a start");
    return {below(starts_[token], uint64_t{end} + 1, "a start"), end};
}

/// The first rank within [lo, hi) whose origin is `rank` or more; hi if there is none.
uint32_t FrozenIndex::first_origin_from(Interval within, uint32_t rank, uint32_t& searched) const {
    const auto search = [rank, &searched](const uint32_t* values, uint64_t from, uint64_t to) {
        uint64_t count = to - from;
        while (count > 0) {  // without branches on data
            ++searched;
            const uint64_t half = count / 2;
            const bool right = values[from + half] < rank;
            from += right ? half + 1 : 0;
            count = right ? count - half - 1 : half;
        }
        return from;
    };
    uint64_t from = within.lo, to = within.hi;
    const uint64_t least = (from + kStride - 1) / kStride, most = (to + kStride - 1) / kStride;
    if (least < most) {
        const uint64_t mark = search(landmarks_.data(), least, most);
        if (mark > least) from = std::max(from, (mark - 1) * kStride);
        if (mark < most) to = std::min(to, mark * kStride);
    }
    return static_cast<uint32_t>(search(origins_.data(), from, to));
}

/// How many tokens, up to `limit`, the contexts ending at two text positions have in common.
uint32_t FrozenIndex::common(uint32_t position, uint32_t context, uint32_t limit) const {
    limit = std::min({limit, position, context});
    uint32_t length = 0;
    while (length < limit && text_[position - length] == text_[context - length] &&
           text_[position - length] != kBoundary)
        ++length;
    return length;
}

/// Grows an interval to the one of depth `depth`; false, and no change, where that one has more than `heavy` ranks.
bool FrozenIndex::widen(Interval& light, uint32_t depth) const {
    Interval wide = light;
    while (wide.size() <= header_.heavy && shared(wide.lo) >= depth) --wide.lo;
    while (wide.size() <= header_.heavy && shared(wide.hi) >= depth) ++wide.hi;
    if (wide.size() > header_.heavy) return false;
    light = wide;
    return true;
}

/// The interval of the first `depth` tokens of a rank's context.
FrozenIndex::Interval FrozenIndex::interval(uint32_t rank, uint32_t depth, uint32_t& searched) const {
    Interval found{rank, rank + 1};
    const bool light = widen(found, depth);
    searched += light ? static_cast<uint32_t>(found.size()) : header_.heavy;
    if (light) return found;
    const Node& node = nodes_[node_of(rank, depth, searched)];
    return {node.lo, node.hi};
}

/// The node of the first `depth` tokens of a rank's context: the outermost one that is at least as deep.
uint32_t FrozenIndex::node_of(uint32_t rank, uint32_t depth, uint32_t& searched) const {
    const uint64_t num_nodes = nodes_.size();
    uint32_t node = directory_[rank / kStride];
    for (; node < num_nodes && nodes_[node].hi <= rank; ++searched) ++node;
    for (; node < num_nodes && nodes_[node].lo > rank; ++searched) node = parent_of(node);
    if (node >= num_nodes || nodes_[node].depth < depth) damaged("the node of a context", node, num_nodes);
    for (uint32_t outer = parent_of(node); outer != kNone && nodes_[outer].depth >= depth; outer = parent_of(node), ++searched)
        node = outer;
    const Node& found = nodes_[node];
    below(found.hi, num_ranks_ + 1, "the end of a node");
    below(found.lo, found.hi, "the begin of a node");
    return node;
}

uint32_t FrozenIndex::parent_of(uint32_t node) const {
    const uint32_t parent = nodes_[node].parent;
    if (parent != kNone && (parent <= node || parent >= nodes_.size()))  // rising, so that every climb ends
        damaged("the parent of a node", parent, nodes_.size());
    return parent;
}

uint32_t FrozenIndex::advance(Cursor& cursor, int32_t token) const {
    check_whole();
    uint32_t searched = 1;
    const Interval all = bucket(token);
    if (all.lo == all.hi) {
        cursor = {};
        return searched;
    }
    if (cursor.length == 0) {
        cursor = {all.lo, all.hi, 1};
        return searched;
    }
    check(cursor);
    const uint32_t begin = first_origin_from(all, cursor.lo, searched);
    if (begin < all.hi && origins_[begin] < cursor.hi) {  // the whole context is followed by the token somewhere
        Interval found{begin, begin + 1};
        if (cursor.length == header_.max_context) {
            found = interval(begin, cursor.length, searched);
        } else {
            const uint64_t most = uint64_t{begin} + (cursor.hi - cursor.lo);
            found.hi = first_origin_from({begin + 1, static_cast<uint32_t>(std::min<uint64_t>(all.hi, most))},
                                         cursor.hi, searched);
            ++cursor.length;
        }
        cursor = {found.lo, found.hi, cursor.length};
        return searched;
    }
    // It is not: the longest suffix that is stands next to the place where the context would have been.
    const uint32_t context = below(positions_[cursor.lo], text_.size(), "a position");
    uint32_t nearest = all.lo, longest = 0;
    for (uint64_t rank : {uint64_t{begin}, uint64_t{begin} - 1}) {
        if (rank < all.lo || rank >= all.hi) continue;
        const uint32_t position = below(positions_[rank], text_.size(), "a position");
        const uint32_t length = position == 0 ? 0 : common(position - 1, context, cursor.length - 1);
        if (length > longest) nearest = static_cast<uint32_t>(rank), longest = length;
    }
    const Interval found = longest == 0 ? all : interval(nearest, longest + 1, searched);
    cursor = {found.lo, found.hi, longest + 1};
    return searched + longest;
}

void FrozenIndex::shorten(Cursor& cursor, uint32_t length) const {
    if (length >= cursor.length) return;
    check(cursor);
    uint32_t searched = 0;
    const Interval found = length == 0 ? Interval{0, 0} : interval(cursor.lo, length, searched);
    cursor = {found.lo, found.hi, length};
}

FrozenIndex::Context FrozenIndex::context_of(uint32_t node, uint32_t length, uint32_t width) const {
    const Tally& tally = tallies_[node];
    below(length, uint64_t{header_.max_context} + 1, "the depth of a node");
    uint32_t size = 0;
    for (; size < width && tally.top[size].count > 0; ++size)
        below(static_cast<uint32_t>(tally.top[size].token), header_.vocabulary, "a continuation");
    for (const int32_t token : {tally.first_token, tally.latest_token})
        if (token != kBoundary) below(static_cast<uint32_t>(token), header_.vocabulary, "a continuation");
    return {length, tally.total, tally.first, tally.latest, tally.first_token, tally.latest_token,
            {tally.top, size}};
}

FrozenIndex::Counter::Counter(const FrozenIndex& index) : index_(index), mask_(2 * index.header_.heavy - 1) {
    std::fill_n(slots_, mask_ + 1, Continuation{kBoundary, 0});
}

void FrozenIndex::Counter::add(uint32_t lo, uint32_t hi) {
    for (uint32_t rank = lo; rank < hi; ++rank) {
        const int32_t token = index_.next_[rank];
        if (token == kBoundary) continue;
        const uint32_t position = index_.positions_[rank];
        index_.below(static_cast<uint32_t>(token), index_.header_.vocabulary, "a continuation");
        ++total_;
        if (first_ == kNoPosition || position < first_) first_ = position, first_token_ = token;
        if (latest_ == kNoPosition || position > latest_) latest_ = position, latest_token_ = token;
        uint32_t slot = static_cast<uint32_t>(token) * 0x9E3779B1u >> 16 & mask_;
        while (slots_[slot].token != token && slots_[slot].token != kBoundary) slot = (slot + 1) & mask_;
        if (slots_[slot].count++ == 0) {
            slots_[slot].token = token;
            used_[distinct_++] = static_cast<uint16_t>(slot);
        }
    }
}

FrozenIndex::Context FrozenIndex::Counter::context(uint32_t length, uint32_t width) {
    uint32_t size = 0;
    for (uint32_t i = 0; i < distinct_; ++i) size = keep_best(best_, size, width, slots_[used_[i]]);
    return {length, total_, first_, latest_, first_token_, latest_token_, {best_, size}};
}

uint32_t FrozenIndex::first(const Cursor& cursor) const {
    uint32_t position = kNoPosition;
    matches(cursor, 0, [&](const Context& context) { position = context.first; return false; });
    return position;
}

uint32_t FrozenIndex::latest(const Cursor& cursor) const {
    uint32_t position = kNoPosition;
    matches(cursor, 0, [&](const Context& context) { position = context.latest; return false; });
    return position;
}

std::span<const int32_t> FrozenIndex::following(uint32_t position, uint32_t limit) const {
    const uint64_t begin = std::min<uint64_t>(uint64_t{position} + 1, text_.size());
    uint64_t end = begin;
    while (end < text_.size() && end - begin < limit && text_[end] != kBoundary) {
        below(static_cast<uint32_t>(text_[end]), header_.vocabulary, "a token");
        ++end;
    }
    return text_.subspan(begin, end - begin);
}

}  // namespace foresay
