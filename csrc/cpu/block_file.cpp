#include "cpu/block_linear.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "checks.hpp"
#include "threads.hpp"

namespace foresay {
namespace {

constexpr size_t kPiece = size_t{512} << 10;  // bytes of rows that a thread reads at a time: they stay in its second cache

struct File {
    const int descriptor;
    explicit File(const std::string& path) : descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
        if (descriptor < 0) throw InputError("'", path, "' cannot be read: ", std::strerror(errno));
    }
    File(const File&) = delete;
    ~File() { ::close(descriptor); }

    uint64_t size() const {
        struct stat found;
        if (::fstat(descriptor, &found) != 0) throw InputError("the file's size cannot be read: ", std::strerror(errno));
        return static_cast<uint64_t>(found.st_size);
    }

    void read(uint8_t* to, size_t bytes, uint64_t at) const {
        while (bytes) {
            const ssize_t got = ::pread(descriptor, to, bytes, static_cast<off_t>(at));
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) throw InputError("it cannot be read: ", std::strerror(errno));
            if (got == 0) throw InputError("the file became shorter: it ends at byte ", at);
            to += got, bytes -= static_cast<size_t>(got), at += static_cast<uint64_t>(got);
        }
    }
};

/// Some panels of a layer.
struct Piece {
    size_t layer, first, end;
};

void lay_out(const File& file, const StoredLinear& stored, BlockLinear& layer, const Piece& piece, std::vector<uint8_t>& read) {
    const size_t wide = layer.level().blocks.outs, row_bytes = layer.row_bytes();
    const size_t begin = piece.first * wide, end = std::min(piece.end * wide, layer.outs());
    const auto row_of = [&](size_t out) { return stored.order.empty() ? out : static_cast<size_t>(stored.order[out]); };
    size_t low = layer.outs(), high = 0;  // an order moves rows within a head, so that those of a piece stand close together
    for (size_t out = begin; out < end; ++out) low = std::min(low, row_of(out)), high = std::max(high, row_of(out) + 1);
    read.resize((high - low) * row_bytes);
    file.read(read.data(), read.size(), stored.start + low * row_bytes);
    std::vector<const uint8_t*> rows(wide);
    for (size_t panel = piece.first; panel < piece.end; ++panel) {
        const size_t first = panel * wide, count = std::min(wide, layer.outs() - first);
        for (size_t i = 0; i < count; ++i) rows[i] = read.data() + (row_of(first + i) - low) * row_bytes;
        layer.lay_out(panel, {rows.data(), count});
    }
}

/// Calls work, and names the layer in what it throws.
template <class Work>
void named(const StoredLinear& stored, const Work& work) {
    try {
        work();
    } catch (const InputError& error) {
        throw InputError("the tensor '", stored.name, "' cannot be used: ", error.what());
    }
}

}  // namespace

std::vector<std::shared_ptr<BlockLinear>> read_linears(const std::string& path, const std::vector<StoredLinear>& stored, uint32_t threads, const Kernels& level) {
    check_threads(threads);
    const File file(path);
    const uint64_t size = file.size();
    std::vector<std::shared_ptr<BlockLinear>> layers;
    std::vector<Piece> pieces;
    for (const StoredLinear& one : stored)
        named(one, [&] {
            const size_t bytes = stored_bytes_of(one.format, one.outs, one.ins);
            if (one.start > size || bytes > size - one.start)  // before there is memory for it
                throw InputError("it should have ", bytes, " bytes at ", one.start, ", but the file has ", size);
            check_order(one.order, one.outs);
            const auto& layer = layers.emplace_back(std::make_shared<BlockLinear>(one.format, one.outs, one.ins, one.bias, level));
            const size_t at_a_time = std::max<size_t>(1, kPiece / (layer->row_bytes() * level.blocks.outs));
            for (size_t first = 0; first < layer->panels(); first += at_a_time)
                pieces.push_back({layers.size() - 1, first, std::min(layer->panels(), first + at_a_time)});
        });
    std::vector<std::vector<uint8_t>> read(threads);
    in_parallel(threads, pieces.size(), [&](size_t i, uint32_t member) {
        const Piece& piece = pieces[i];
        named(stored[piece.layer], [&] { lay_out(file, stored[piece.layer], *layers[piece.layer], piece, read[member]); });
    });
    return layers;
}

}  // namespace foresay
