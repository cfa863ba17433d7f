#include "cpu/attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "checks.hpp"
#include "drafts.hpp"
#include "cpu/levels.hpp"
#include "slab.hpp"
#include "threads.hpp"

namespace foresay {
namespace {

using attention::Block;
using attention::kMostLanes, attention::kSegment;

constexpr uint32_t kMaxRows = 1u << 24, kMaxHeads = 1u << 16;
constexpr size_t kStoredRows = 16, kManyRows = 128;  // rows that one thread stores at a time; rows and heads that are worth a team
constexpr uint64_t kTeamWork = 400'000;  // multiplications below which one thread is as fast

void check_array(const char* name, const Numbers& array, size_t heads, size_t rows, size_t dim) {
    if (array.shape[0] != 1 || array.shape[1] != heads || array.shape[2] != rows || array.shape[3] != dim)
        throw InputError(name, " has the shape ", shape_of(array.shape, 4), "; expected ", shape_of({1, heads, rows, dim}), " here");
    if (dim > 1 && array.strides[3] != 1)
        throw InputError(name, " has a last stride of ", array.strides[3], "; numbers of a head follow each other, so give a contiguous copy");
}

}  // namespace

// ---- the step ------------------------------------------------------------------------------------------------------

AttentionStep::AttentionStep(std::vector<std::shared_ptr<Kv>> kvs, std::vector<int32_t> offsets, std::span<const int32_t> parents,
                             const Kernels& level, std::vector<uint32_t> kept)
    : kvs_(std::move(kvs)), offsets_(std::move(offsets)), kept_(std::move(kept)), kernel_(&level.attention) {
    if (kvs_.empty()) throw InputError("there are 0 kvs; expected at least 1");
    check_size("offsets", offsets_.size(), kvs_.size() + 1);
    if (parents.size() > kMaxRows) throw InputError("there are ", parents.size(), " rows; expected at most ", kMaxRows);
    check_offsets(offsets_, parents.size());
    std::vector<const Kv*> known;
    for (const auto& kv : kvs_) {
        if (!kv) throw InputError("kvs[", known.size(), "] is None; expected a Kv");
        if (!std::equal(kv->layers().begin(), kv->layers().end(), kvs_[0]->layers().begin(), kvs_[0]->layers().end()) ||
            kv->dtype() != kvs_[0]->dtype())
            throw InputError("kvs[", known.size(), "] has another layout than kvs[0]; expected the same layers and dtype");
        known.push_back(kv.get());
    }
    std::sort(known.begin(), known.end());
    if (std::adjacent_find(known.begin(), known.end()) != known.end()) throw InputError("kvs has one Kv twice; expected each once");
    for (size_t i = 0; i < kept_.size(); ++i)
        if (kept_[i] >= kvs_[0]->layers().size() || (i > 0 && kept_[i] <= kept_[i - 1]))
            throw InputError("kept[", i, "] is ", kept_[i], "; expected layers from 0 to ", kvs_[0]->layers().size() - 1, ", rising");

    positions_.reserve(parents.size()), places_.reserve(parents.size());
    std::vector<uint32_t> path;
    for (size_t i = 0; i < kvs_.size(); ++i) {
        const uint32_t first = static_cast<uint32_t>(offsets_[i]), count = static_cast<uint32_t>(offsets_[i + 1]) - first;
        const uint32_t length = kvs_[i]->length();
        for (uint32_t row = 0; row < count; ++row) {
            const int32_t parent = parents[first + row];
            if (parent < -1 || parent >= static_cast<int32_t>(row))
                throw InputError("the parent of row ", row, " of request ", i, " is ", parent, "; expected -1 or a row before it");
            Place place{static_cast<uint32_t>(i), 0, 0, rests_.size()};
            if (parent >= 0) {
                const Place& above = places_[first + static_cast<uint32_t>(parent)];
                place.depth = above.depth + 1, place.run = above.run;
                const uint32_t steps = above.depth + 1 - above.run;  // of the parent's slots, those that are listed
                const size_t listed = rests_.size();
                rests_.resize(listed + steps);
                std::copy_n(rests_.begin() + static_cast<ptrdiff_t>(above.rest), steps, rests_.begin() + static_cast<ptrdiff_t>(listed));
            }
            if (place.run == place.depth && row == place.depth) ++place.run;
            else rests_.push_back(length + row);
            places_.push_back(place);
            positions_.push_back(int64_t{length} + place.depth);
        }
        kvs_[i]->reserve(uint64_t{length} + count);
    }
    for (const auto& kv : kvs_) versions_.push_back(kv->begin_step());
}

void AttentionStep::check(const AttentionInput& input) const {
    const auto layers = kvs_[0]->layers();
    const size_t count = kept_.empty() ? layers.size() : kept_.size();
    if (input.layer >= count) throw InputError("layer ", input.layer, " does not exist; there are ", count);
    const KvLayer& layer = layers[place_of(input.layer)];
    const size_t heads = input.query.shape[1], rows = input.query.shape[2];
    if (heads == 0 || heads > kMaxHeads || heads % layer.heads != 0)
        throw InputError("there are ", heads, " query heads; expected a multiple of ", layer.heads, ", the key heads, up to ", kMaxHeads);
    if (rows < positions_.size() || rows > kMaxRows)
        throw InputError("query has ", rows, " rows; expected ", positions_.size(), " to ", kMaxRows, ", at least the rows of the step");
    check_array("query", input.query, heads, rows, layer.key_dim);
    check_array("key", input.key, layer.heads, rows, layer.key_dim);
    check_array("value", input.value, layer.heads, rows, layer.value_dim);
    const Numbers& out = input.out;
    const size_t wanted[] = {1, rows, heads, layer.value_dim};
    if (!std::equal(wanted, wanted + 4, out.shape))
        throw InputError("out has the shape ", shape_of(out.shape, 4), "; expected ", shape_of(wanted, 4), " here");
    int64_t step = 1;
    for (int i = 3; i >= 0; step *= static_cast<int64_t>(out.shape[i--]))
        if (out.shape[i] > 1 && out.strides[i] != step) throw InputError("out is not contiguous; expected a contiguous array");
    if (!std::isfinite(input.scaling)) throw InputError("scaling is ", input.scaling, "; expected a finite number");
    if (!(input.softcap >= 0) || std::isinf(input.softcap))
        throw InputError("softcap is ", input.softcap, "; expected 0 (none) or more, and finite");
    if (input.sinks && input.sink_count != heads) throw InputError("sinks has ", input.sink_count, " values; expected ", heads);
    check_threads(input.threads);
}

/// What each row sees, and who does what.
void AttentionStep::plan(const Plan& wanted) {
    if (wanted == plan_) return;
    plan_ = {};  // none, should there be no memory
    rows_.clear(), pieces_.clear(), items_.clear();
    partials_ = 0, seen_ = 0;
    const uint32_t most_rows = std::max(1u, kMostLanes / wanted.group);
    for (uint32_t request = 0; request < kvs_.size(); ++request) {
        const uint32_t length = kvs_[request]->length(), stop = static_cast<uint32_t>(offsets_[request + 1]);
        for (uint32_t first = static_cast<uint32_t>(offsets_[request]); first < stop; first += most_rows) {
            const uint32_t end = std::min(stop, first + most_rows);
            uint32_t low = UINT32_MAX, high = 0;
            for (uint32_t row = first; row < end; ++row) {
                const auto position = static_cast<uint32_t>(positions_[row]);
                uint32_t begin = 0;
                if (wanted.window != 0 && position >= wanted.window) begin = position - wanted.window + 1;
                if (wanted.chunk != 0) begin = std::max(begin, position / wanted.chunk * wanted.chunk);
                rows_.push_back({begin, position + 1, length + places_[row].run, rests_.data() + places_[row].rest});
                low = std::min(low, begin), high = std::max(high, position + 1);
                seen_ += uint64_t{position + 1 - begin} * wanted.group;
            }
            pieces_.push_back({request, first, end, low / kSegment, (high + kSegment - 1) / kSegment, partials_, 1});
        }
    }
    // The longest begin: the last rows of a request see most.
    const size_t shares = std::max<size_t>(1, (4 * wanted.threads + pieces_.size() * wanted.heads - 1) / std::max<size_t>(1, pieces_.size() * wanted.heads));
    for (size_t i = pieces_.size(); i-- > 0;) {
        Piece& piece = pieces_[i];
        const uint32_t segments = piece.end_segment - piece.first_segment;
        const auto parts = static_cast<uint32_t>(std::min<size_t>(segments, wanted.threads > 1 ? shares : 1));
        const uint32_t step = (segments + parts - 1) / parts;
        piece.parts = 0, piece.partials = partials_;
        for (uint32_t segment = piece.first_segment; segment < piece.end_segment; segment += step, ++piece.parts)
            items_.push_back({static_cast<uint32_t>(i), segment, std::min(piece.end_segment, segment + step)});
        if (piece.parts > 1) partials_ += size_t{segments} * (piece.end - piece.first) * wanted.group;
    }
    left_ = std::make_unique<std::atomic<uint32_t>[]>(pieces_.size() * wanted.heads);
    plan_ = wanted;
}

void AttentionStep::store(const AttentionInput& input, size_t first, size_t end) noexcept {
    const uint32_t layer = input.layer, heads = kvs_[0]->layers()[layer].heads;
    const int64_t size = kvs_[0]->dtype() == Dtype::float32 ? 4 : 2;
    const auto at = [size](const Numbers& array, uint32_t head, size_t row) {
        return static_cast<const char*>(array.data) + size * (array.strides[1] * head + array.strides[2] * static_cast<int64_t>(row));
    };
    for (size_t row = first; row < end; ++row) {
        const uint32_t request = places_[row].request;
        for (uint32_t head = 0; head < heads; ++head)
            kvs_[request]->put(layer, head, static_cast<uint32_t>(row) - static_cast<uint32_t>(offsets_[request]), at(input.key, head, row),
                               at(input.value, head, row));
    }
}

// ---- the work ------------------------------------------------------------------------------------------------------

struct AttentionStep::Call {
    AttentionStep& step;
    const AttentionInput& input;
    float *scratch, *partials;
    size_t scratch_step;
    uint32_t lane_size;
    std::atomic<size_t> next = 0;
    std::atomic<uint32_t> threads = 0;
    std::atomic<size_t> stored = 0;

    void store() noexcept {
        const size_t rows = step.places_.size();
        for (size_t first; (first = stored.fetch_add(kStoredRows)) < rows;) step.store(input, first, std::min(rows, first + kStoredRows));
    }

    Block block(const Piece& piece, uint32_t head) const noexcept {
        const Kv& kv = *step.kvs_[piece.request];
        const KvLayer& layer = kv.layers()[input.layer];
        const uint32_t group = step.plan_.group;
        const auto number = static_cast<int64_t>(kv.dtype() == Dtype::float32 ? 4 : 2);
        Block b{};
        b.keys = kv.keys(input.layer, head), b.values = kv.values(input.layer, head);
        b.rows = &step.rows_[piece.first];
        b.query_row = input.query.strides[2], b.query_head = input.query.strides[1];
        b.query = static_cast<const char*>(input.query.data) + number * (b.query_row * piece.first + b.query_head * head * group);
        b.out_row = static_cast<ptrdiff_t>(input.query.shape[1] * layer.value_dim);
        b.out = static_cast<char*>(input.out.data) + number * (b.out_row * piece.first + int64_t{head} * group * layer.value_dim);
        b.sinks = input.sinks ? input.sinks + size_t{head} * group : nullptr;
        b.row_count = piece.end - piece.first, b.group = group;
        b.key_dim = layer.key_dim, b.value_dim = layer.value_dim;
        b.key_words = kv.key_words(input.layer), b.value_words = kv.value_words(input.layer);
        b.scaling = input.scaling, b.softcap = input.softcap;
        return b;
    }

    void run() noexcept {
        const uint32_t thread = threads.fetch_add(1);
        const uint32_t heads = step.plan_.heads;
        if (thread >= input.threads) return;  // no space for more
        float* const space = scratch + scratch_step * thread;
        const int dtype = step.kvs_[0]->dtype() == Dtype::bfloat16;
        for (size_t i; (i = next.fetch_add(1)) < step.items_.size() * heads;) {
            const Item& item = step.items_[i / heads];
            const Piece& piece = step.pieces_[item.piece];
            const auto head = static_cast<uint32_t>(i % heads);
            Block b = block(piece, head);
            b.first_segment = item.first_segment, b.end_segment = item.end_segment;
            if (piece.parts == 1) {
                step.kernel_->attend[dtype](b, space);
                continue;
            }
            float* const results = partials + (head * step.partials_ + piece.partials) * lane_size;
            b.partials = results + size_t{item.first_segment - piece.first_segment} * lanes_of(b) * lane_size;
            step.kernel_->attend[dtype](b, space);
            // The last thread finds the results of all the others.
            if (step.left_[size_t{item.piece} * heads + head].fetch_sub(1, std::memory_order_acq_rel) != 1) continue;
            b.partials = results, b.first_segment = piece.first_segment, b.end_segment = piece.end_segment;
            step.kernel_->finish[dtype](b, space);
        }
    }
};

void AttentionStep::attend(const AttentionInput& input) {
    check(input);
    AttentionInput placed = input;
    placed.layer = place_of(input.layer);
    attend_in(placed);
    if (input.layer + 1 != kept_.size()) return;
    // Of the skipped layers the rows count as written now, so that `keep` finds rows in all layers after a whole pass only.
    for (size_t i = 0; i < kvs_.size(); ++i)
        for (uint32_t layer = 0; layer < kvs_[i]->layers().size(); ++layer)
            if (!std::binary_search(kept_.begin(), kept_.end(), layer)) kvs_[i]->mark(layer, static_cast<uint32_t>(offsets_[i + 1] - offsets_[i]));
}

void AttentionStep::attend_in(const AttentionInput& input) {
    std::vector<Kv::Use> uses;
    uses.reserve(kvs_.size());
    for (const auto& kv : kvs_) uses.emplace_back(*kv);
    for (size_t i = 0; i < kvs_.size(); ++i)
        if (kvs_[i]->version() != versions_[i])
            throw StateError("the Kv of request ", i, " has changed since the step began; begin another step");

    const KvLayer& layer = kvs_[0]->layers()[input.layer];
    const size_t heads = input.query.shape[1], rows = positions_.size();
    const auto group = static_cast<uint32_t>(heads / layer.heads);
    plan({input.window, input.chunk, group, layer.heads, input.threads});

    const bool small = kvs_[0]->dtype() == Dtype::bfloat16;
    const uint32_t columns = kvs_[0]->value_words(input.layer) * (small ? 2 : 1), lane_size = attention::partial_of(columns);
    const size_t space = (attention::scratch_of(std::max(kMostLanes, group), layer.key_dim, columns) + 15) / 16 * 16;
    const size_t partials = partials_ * layer.heads * lane_size;
    Call call{*this, input, slab::scratch<AttentionStep, float>(space * input.threads + partials), nullptr, space, lane_size};
    call.partials = call.scratch + space * input.threads;
    for (size_t i = 0; i < pieces_.size(); ++i)
        for (uint32_t head = 0; head < layer.heads; ++head) left_[i * layer.heads + head].store(pieces_[i].parts, std::memory_order_relaxed);

    const size_t row_bytes = heads * layer.value_dim * (small ? 2 : 4);
    std::memset(static_cast<char*>(input.out.data) + rows * row_bytes, 0, (input.out.shape[1] - rows) * row_bytes);
    const uint64_t work = seen_ * layer.heads * (layer.key_dim + layer.value_dim);
    const bool alone = work < kTeamWork;
    const uint32_t threads = alone ? 1 : input.threads;
    on_team(rows * layer.heads < kManyRows ? 1 : threads, [](void* data) { static_cast<Call*>(data)->store(); }, &call);
    for (size_t i = 0; i < kvs_.size(); ++i) kvs_[i]->mark(input.layer, static_cast<uint32_t>(offsets_[i + 1] - offsets_[i]));
    on_team(threads, [](void* data) { static_cast<Call*>(data)->run(); }, &call);
}

}  // namespace foresay
