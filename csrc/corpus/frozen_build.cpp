#include "corpus/frozen_build.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <vector>

#include "corpus/checksum.hpp"
#include "corpus/frozen_sort.hpp"
#include "threads.hpp"

namespace foresay {

using namespace frozen;

namespace {

template <class... Words>
[[noreturn]] void fail(int error, const Words&... what) {
    throw std::system_error(error, std::generic_category(), sentence(what...));
}

}  // namespace

FrozenBuilder::FrozenBuilder(std::string path, const BuildOptions& options)
    : path_(std::move(path)), options_(options) {
    if (options.vocabulary < 1 || options.vocabulary > kMostVocabulary)
        throw InputError("The vocabulary has size ", options.vocabulary, "; expected 1 to ", kMostVocabulary, ".");
    if (options.max_context < 1 || options.max_context > kMostContext)
        throw InputError("max_context is ", options.max_context, "; expected 1 to ", kMostContext, ".");
    if (options.threads < 1 || options.threads > 1024) throw InputError("threads is ", options.threads, "; expected 1 to 1024.");
    std::memcpy(header_.magic, kMagic, sizeof kMagic);
    header_.version = kVersion;
    header_.endian_mark = kEndianMark;
    header_.vocabulary = options.vocabulary;
    header_.max_context = options.max_context;
    header_.num_sections = kSections;
    std::copy(options.tokenizer_hash.begin(), options.tokenizer_hash.end(), header_.tokenizer_hash);
    counts_.resize(options.vocabulary);
    temporary_ = path_ + ".XXXXXX.tmp";
    descriptor_ = mkostemps(temporary_.data(), 4, O_CLOEXEC);  // mode 0600: the file is the corpus itself
    if (descriptor_ < 0) fail(errno, "Cannot create '", temporary_, "'");
    stream_ = fdopen(descriptor_, "w");
    if (!stream_ || fseek(stream_, sizeof(Header), SEEK_SET) != 0) give_up();
    setvbuf(stream_, nullptr, _IOFBF, size_t{1} << 20);
    write(&kBoundary, 1);
}

FrozenBuilder::~FrozenBuilder() { abandon(); }

void FrozenBuilder::abandon() noexcept {
    file_ = MappedFile();
    if (descriptor_ < 0) return;
    unlink(temporary_.c_str());
    close_file();
}

void FrozenBuilder::close_file() noexcept {
    if (stream_) fclose(stream_);
    else close(descriptor_);
    stream_ = nullptr, descriptor_ = -1;
}

/// The text may have a hole now.
void FrozenBuilder::give_up() {
    const int error = errno;
    abandon();
    fail(error, "Cannot write '", temporary_, "'");
}

void FrozenBuilder::require_open() const {
    if (finishing_) throw StateError("The builder of '", path_, "' is at work; wait until finish() returns.");
    if (descriptor_ < 0) throw InputError("The builder of '", path_, "' is finished; make a new one.");
}

void FrozenBuilder::add_document(std::span<const int32_t> tokens) {
    require_open();
    if (tokens.empty()) return;
    if (header_.tokens + header_.documents + tokens.size() + 2 >= kMostPositions)
        throw InputError("A document of ", tokens.size(), " tokens does not fit after ", header_.tokens,
                         " tokens; a corpus file holds at most ", kMostPositions,
                         ", boundaries included. Split the corpus over several files.");
    for (const int32_t token : tokens)
        if (token < 0 || static_cast<uint32_t>(token) >= options_.vocabulary)
            throw InputError("A document has the token ", token, "; expected 0 to ", options_.vocabulary - 1, ".");
    for (const int32_t token : tokens) ++counts_[token];
    header_.tokens += tokens.size();
    ++header_.documents;
    write(tokens.data(), tokens.size());
    write(&kBoundary, 1);
}

void FrozenBuilder::write(const int32_t* tokens, size_t count) {
    if (fwrite(tokens, sizeof(int32_t), count, stream_) != count) give_up();
}

/// Gives every section its place, and the file the room on disk: a full disk must be an error here, not a fault later.
void FrozenBuilder::reserve(uint64_t num_nodes) {
    uint64_t end = sizeof(Header);
    for (uint32_t i = 0; i < kSections; ++i) {
        header_.sections[i] = {end, section_length(header_, num_nodes, i), 0};
        end = (end + header_.sections[i].length + kAlignment - 1) / kAlignment * kAlignment;
    }
    header_.file_length = end;
    const int error = posix_fallocate(descriptor_, 0, static_cast<off_t>(end));
    if (error != 0) fail(error, "Cannot reserve ", end, " bytes for '", temporary_, "'");
    file_ = MappedFile();
    file_ = MappedFile(descriptor_, end, MappedFile::Access::kWrite, temporary_);
}

void FrozenBuilder::finish(const Progress& progress) {
    require_open();
    finishing_ = true;
    progress_ = progress;
    try {
        if (header_.tokens == 0) throw InputError("The corpus for '", path_, "' is empty; expected at least one token.");
        if (fflush(stream_) != 0) give_up();
        reserve(0);
        sort_contexts();
        collect_origins();
        collect_nodes();
        count_continuations();
        seal();
    } catch (...) {
        finishing_ = false;
        abandon();
        throw;
    }
    finishing_ = false;
}

void FrozenBuilder::sort_contexts() {
    report("sort", 0);
    uint32_t* starts = section<uint32_t>(kStarts);
    uint64_t start = 0;
    for (uint32_t token = 0; token <= options_.vocabulary; ++token) {
        starts[token] = static_cast<uint32_t>(start);
        if (token < options_.vocabulary) start += counts_[token];
    }
    const std::span<const int32_t> text(section<int32_t>(kText), header_.sections[kText].length / 4);
    sort_ranks(text, counts_, {options_.memory_bytes, options_.threads, options_.max_context},
               {section<uint32_t>(kPositions), section<int32_t>(kNext), section<uint8_t>(kShared)},
               [&](double fraction) { report("sort", fraction); });
}

void FrozenBuilder::collect_origins() {
    report("origins", 0);
    const uint64_t n = header_.tokens;
    const int32_t* next = section<int32_t>(kNext);
    const uint32_t* starts = section<uint32_t>(kStarts);
    uint32_t* origins = section<uint32_t>(kOrigins);
    in_parallel(options_.threads, options_.threads, [&](size_t part, uint32_t) {  // a range of tokens with its share of ranks
        const auto first_token = [&](size_t of) {
            const auto from = static_cast<uint32_t>(n * of / options_.threads);
            return static_cast<uint32_t>(std::lower_bound(starts, starts + options_.vocabulary, from) - starts);
        };
        const uint32_t from = part == 0 ? 0 : first_token(part);
        const uint32_t to = part + 1 == options_.threads ? options_.vocabulary : first_token(part + 1);
        std::vector<uint32_t> ends(starts + from, starts + to);
        for (uint64_t rank = 0; rank < n; ++rank) {
            const uint32_t token = static_cast<uint32_t>(next[rank]) - from;  // a boundary is larger than any token
            if (token < to - from) origins[ends[token]++] = static_cast<uint32_t>(rank);
        }
        for (uint32_t token = from; token < to; ++token)
            std::fill(origins + ends[token - from], origins + starts[token + 1], static_cast<uint32_t>(n));
    });
    uint32_t* landmarks = section<uint32_t>(kLandmarks);
    for (uint64_t block = 0; block < blocks_of(n); ++block) landmarks[block] = origins[block * kStride];
}

void FrozenBuilder::collect_nodes() {
    report("nodes", 0);
    const uint64_t n = header_.tokens;
    uint64_t num_nodes = 0;
    for (header_.heavy = kLeastHeavy;; header_.heavy *= 2) {
        num_nodes = 0;
        for_each_node(section<uint8_t>(kShared), n, header_.heavy,
                      [&](uint32_t, uint32_t, uint32_t, uint32_t) { return static_cast<uint32_t>(num_nodes++); },
                      [](uint32_t, uint32_t) {});
        if (header_.heavy == kMostHeavy || num_nodes * (sizeof(Node) + sizeof(Tally)) <= n * kNodeBytesPerToken) break;
    }
    reserve(num_nodes);
    Node* nodes = section<Node>(kNodes);
    uint32_t made = 0;
    for_each_node(
        section<uint8_t>(kShared), n, header_.heavy,
        [&](uint32_t lo, uint32_t hi, uint32_t depth, uint32_t last_child) {
            nodes[made] = {lo, hi, kNone, depth};
            for (uint32_t child = last_child; child != kNone;)
                child = std::exchange(nodes[child].parent, made);
            return made++;
        },
        [&](uint32_t id, uint32_t previous_sibling) { nodes[id].parent = previous_sibling; });
    uint32_t* directory = section<uint32_t>(kDirectory);
    uint32_t node = 0;
    for (uint64_t block = 0; block <= blocks_of(n); ++block) {
        while (node < num_nodes && nodes[node].hi <= block * kStride) ++node;
        directory[block] = node;
    }
}

void FrozenBuilder::count_continuations() {
    report("count", 0);
    const uint64_t num_nodes = header_.sections[kNodes].length / sizeof(Node);
    const Node* nodes = section<Node>(kNodes);
    Tally* tallies = section<Tally>(kTallies);
    constexpr uint64_t kPart = 1024;
    std::vector<std::vector<uint32_t>> counts(options_.threads);
    in_parallel(options_.threads, (num_nodes + kPart - 1) / kPart, [&](size_t part, uint32_t thread) {
        std::vector<int32_t> seen;
        counts[thread].resize(options_.vocabulary);
        for (uint64_t i = part * kPart; i < std::min((part + 1) * kPart, num_nodes); ++i)
            tallies[i] = tally_of(nodes[i], section<int32_t>(kNext), section<uint32_t>(kPositions), counts[thread], seen);
        if (thread == 0) report("count", static_cast<double>(part * kPart) / static_cast<double>(num_nodes));
    });
}

void FrozenBuilder::seal() {
    report("write", 0);
    in_parallel(options_.threads, kSections, [&](size_t i, uint32_t) {
        header_.sections[i].checksum = checksum(section<char>(i), header_.sections[i].length);
    });
    header_.checksum = checksum(&header_, offsetof(Header, checksum));
    std::memcpy(file_.data(), &header_, sizeof(Header));
    file_ = MappedFile();
    if (fsync(descriptor_) != 0) fail(errno, "Cannot write '", temporary_, "' to disk");
    report("write", 1);  // the last chance to stop
    if (rename(temporary_.c_str(), path_.c_str()) != 0) fail(errno, "Cannot rename '", temporary_, "' to '", path_, "'");
    close_file();
    // The name itself must reach the disk too; where a directory cannot be synced there is nothing more to do.
    const size_t slash = path_.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : path_.substr(0, slash + 1);
    if (const int directory = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); directory >= 0) {
        fsync(directory);
        close(directory);
    }
}

namespace frozen {

Tally tally_of(const Node& node, const int32_t* next, const uint32_t* positions, std::vector<uint32_t>& counts,
               std::vector<int32_t>& seen) {
    Tally tally{0, 0, kNone, kNone, kBoundary, kBoundary, {}};
    seen.clear();
    uint32_t first = kNone, latest = 0;
    for (uint32_t rank = node.lo; rank < node.hi; ++rank) {
        const int32_t token = next[rank];
        if (token == kBoundary) continue;
        ++tally.total;
        if (counts[token]++ == 0) seen.push_back(token);
        if (positions[rank] < first) first = positions[rank], tally.first_token = token;
        if (positions[rank] > latest) latest = positions[rank], tally.latest_token = token;
    }
    if (tally.total > 0) tally.first = first, tally.latest = latest;
    tally.distinct = static_cast<uint32_t>(seen.size());
    uint32_t size = 0;
    for (const int32_t token : seen) size = keep_best(tally.top, size, kTop, {token, std::exchange(counts[token], 0)});
    for (; size < kTop; ++size) tally.top[size] = {kBoundary, 0};
    return tally;
}

}  // namespace frozen
}  // namespace foresay
