#include "paged/pages.hpp"

#include <algorithm>
#include <new>
#include <stdexcept>
#include <utility>

#include "errors.hpp"

namespace foresay {
namespace {

constexpr uint32_t kMaxTokens = 1u << 30;

size_t pages_for(uint64_t tokens) { return (tokens + PagePool::kPage - 1) / PagePool::kPage; }

}  // namespace

PagePool::PagePool(uint32_t pages) {
    if (pages == 0 || pages >= kMaxPages) throw InputError("the pool has ", pages, " pages; expected 1 to ", kMaxPages - 1);
    holders_.assign(size_t{pages} + 1, 0);
    holders_[0] = 1;
    read_.assign(holders_.size(), 0), written_.assign(holders_.size(), 0);
    free_.reserve(pages);
    for (uint32_t page = pages; page > 0; --page) free_.push_back(page);
}

uint32_t PagePool::take() {
    if (free_.empty()) throw std::bad_alloc();
    const uint32_t page = free_.back();
    free_.pop_back();
    holders_[page] = 1;
    return page;
}

void PagePool::release(uint32_t page) noexcept {
    if (--holders_[page] == 0) free_.push_back(page);
}

void PagePool::copy(std::span<const int32_t> from, std::span<const int32_t> to) {
    const auto page = [](int32_t slot) { return static_cast<uint32_t>(slot) / kPage; };
    bool waits = batches_.empty();
    for (size_t i = 0; i < from.size() && !waits; ++i)
        waits = written_[page(from[i])] == batch_ || written_[page(to[i])] == batch_ || read_[page(to[i])] == batch_;
    if (waits) batches_.emplace_back(), ++batch_;
    SlotCopies& batch = batches_.back();
    batch.from.insert(batch.from.end(), from.begin(), from.end());
    batch.to.insert(batch.to.end(), to.begin(), to.end());
    batch.offsets.push_back(static_cast<int32_t>(batch.from.size()));
    for (size_t i = 0; i < from.size(); ++i) read_[page(from[i])] = written_[page(to[i])] = batch_;
}

void PagePool::copied() {
    if (batches_.empty()) throw std::logic_error("no copies are left");
    batches_.erase(batches_.begin());
}

PagedText::~PagedText() { leave_only(0); }

void PagedText::leave_only(size_t pages) noexcept {
    while (pages_.size() > pages) {
        pool_->release(pages_.back());
        pages_.pop_back();
    }
}

void PagedText::check_path(std::span<const int32_t> path) const {
    for (size_t i = 0; i < path.size(); ++i)
        if (path[i] < (i ? path[i - 1] + 1 : 0) || static_cast<uint32_t>(path[i]) >= rows_)
            throw InputError("the path has row ", path[i], " at index ", i, "; expected rows of 0 to ", int64_t{rows_} - 1, ", in order");
}

void PagedText::keep(std::span<const int32_t> path) {
    check_path(path);
    std::vector<int32_t> from, to;
    for (size_t i = 0; i < path.size(); ++i)
        if (static_cast<size_t>(path[i]) != i) {
            from.push_back(slot(length_ + static_cast<uint32_t>(path[i])));
            to.push_back(slot(length_ + static_cast<uint32_t>(i)));
        }
    if (!from.empty()) pool_->copy(from, to);
    length_ += static_cast<uint32_t>(path.size()), rows_ = begun_ = 0;
    leave_only(pages_for(length_));
}

void PagedText::cut(uint32_t length) {
    if (length > length_) throw InputError("length is ", length, "; expected 0 to ", length_);
    length_ = length, rows_ = begun_ = 0;
    leave_only(pages_for(length_));
}

void PagedText::copy_from(const PagedText& other, uint32_t length) {
    if (length_ || &other == this || other.pool_ != pool_)
        throw InputError("the text has ", length_, " tokens; expected none, and another text of the same memory");
    if (length > other.length_) throw InputError("length is ", length, "; expected 0 to ", other.length_);
    cut(0);
    const size_t whole = length / PagePool::kPage, rest = length % PagePool::kPage;
    pages_.reserve(whole + 1);
    if (rest) {
        const uint32_t page = pool_->take();
        std::vector<int32_t> from(rest), to(rest);
        for (size_t i = 0; i < rest; ++i) {
            from[i] = other.slot(static_cast<uint32_t>(whole * PagePool::kPage + i));
            to[i] = static_cast<int32_t>(page * PagePool::kPage + i);
        }
        pool_->copy(from, to);
        pages_.push_back(page);
    }
    pages_.insert(pages_.begin(), other.pages_.begin(), other.pages_.begin() + static_cast<std::ptrdiff_t>(whole));
    for (size_t i = 0; i < whole; ++i) pool_->share(pages_[i]);
    length_ = length;
}

void PagedText::begin_step(uint32_t rows) {
    if (uint64_t{length_} + rows > kMaxTokens) throw InputError("the text has ", uint64_t{length_} + rows, " tokens; expected at most ", kMaxTokens);
    rows_ = begun_ = 0;
    const size_t needed = pages_for(uint64_t{length_} + rows), first = length_ / PagePool::kPage;
    leave_only(std::max(needed, pages_for(length_)));
    const bool split = first < pages_.size() && pool_->shared(pages_[first]);  // it was cut, and another text has the page as well
    if (std::max(needed, pages_.size()) - pages_.size() + split > pool_->free()) {
        leave_only(pages_for(length_));
        throw std::bad_alloc();
    }
    if (split) {
        const uint32_t page = pool_->take();
        std::vector<int32_t> from, to;
        for (uint32_t i = 0; i < length_ % PagePool::kPage; ++i) {
            from.push_back(static_cast<int32_t>(pages_[first] * PagePool::kPage + i));
            to.push_back(static_cast<int32_t>(page * PagePool::kPage + i));
        }
        if (!from.empty()) pool_->copy(from, to);
        pool_->release(pages_[first]);
        pages_[first] = page;
    }
    while (pages_.size() < needed) pages_.push_back(pool_->take());
    begun_ = rows;
}

void PagedText::end_step(uint32_t rows) {
    if (rows > begun_) throw InputError("a step of ", rows, " rows has ended in a text; expected at most ", begun_, ", which it has room for");
    rows_ = rows;
}

void PagedText::check_integrity() const {
    if (pages_.size() < pages_for(uint64_t{length_} + rows_))
        throw std::logic_error(sentence("a text of ", length_, " tokens and ", rows_, " rows has ", pages_.size(), " pages"));
    for (const uint32_t page : pages_)
        if (page == 0 || page > pool_->pages()) throw std::logic_error(sentence("a text has page ", page, " of ", pool_->pages()));
}

}  // namespace foresay
