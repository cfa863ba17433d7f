// The memory of keys and values on a device, in pages of 64 tokens: which page belongs to which text. The numbers themselves
// are on the device; here is only what the host must know, and what the device has to copy before the next step.
//
// A slot is a token's place in the pool: page * 64 + offset. Page 0 belongs to nobody: rows that only fill up a step write there.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace foresay {

/// Copies of single slots, which may run at the same time; those of one group run in their order.
struct SlotCopies {
    std::vector<int32_t> from, to;
    std::vector<int32_t> offsets{0};  // of groups
};

class PagePool {
public:
    static constexpr uint32_t kPage = 64;               // tokens
    static constexpr uint32_t kMaxPages = 1u << 25;     // a slot is an int32

    /// Throws InputError for a number of pages that cannot be.
    explicit PagePool(uint32_t pages);

    uint32_t pages() const noexcept { return static_cast<uint32_t>(holders_.size()) - 1; }
    uint32_t free() const noexcept { return static_cast<uint32_t>(free_.size()); }
    /// Throws std::bad_alloc if none is free.
    uint32_t take();
    void share(uint32_t page) noexcept { ++holders_[page]; }
    void release(uint32_t page) noexcept;
    bool shared(uint32_t page) const noexcept { return holders_[page] > 1; }

    /// One group of copies, which is not empty. It comes after all copies that were asked for before, where that matters.
    void copy(std::span<const int32_t> from, std::span<const int32_t> to);
    /// The first batch of copies that the device was not given yet; null if there is none. Valid until the pool or a text changes.
    const SlotCopies* next_copies() const noexcept { return batches_.empty() ? nullptr : &batches_.front(); }
    /// The device was given that batch. Throws std::logic_error if there is none.
    void copied();

private:
    std::vector<uint32_t> holders_;            // of each page
    std::vector<uint32_t> free_;
    std::vector<SlotCopies> batches_;
    std::vector<uint64_t> read_, written_;     // the last batch that did so to a page
    uint64_t batch_ = 0;
};

/// The pages of one text. Not for several threads at a time.
class PagedText {
public:
    explicit PagedText(std::shared_ptr<PagePool> pool) : pool_(std::move(pool)) {}
    PagedText(const PagedText&) = delete;
    PagedText& operator=(const PagedText&) = delete;
    ~PagedText();

    uint32_t length() const noexcept { return length_; }
    uint32_t rows() const noexcept { return rows_; }
    uint32_t capacity() const noexcept { return static_cast<uint32_t>(pages_.size()) * PagePool::kPage; }
    const PagePool& pool() const noexcept { return *pool_; }
    int32_t slot(uint32_t position) const noexcept {
        return static_cast<int32_t>(pages_[position / PagePool::kPage] * PagePool::kPage + position % PagePool::kPage);
    }

    /// Throws InputError for rows that `keep` does not take.
    void check_path(std::span<const int32_t> path) const;
    /// The rows `path` of the last step, strictly increasing, become the text's next tokens. Throws InputError.
    void keep(std::span<const int32_t> path);
    /// Throws InputError.
    void cut(uint32_t length);
    /// Shares the full pages of another text of the pool, and copies the rest. Throws InputError, std::bad_alloc.
    void copy_from(const PagedText& other, uint32_t length);
    /// Throws std::logic_error.
    void check_integrity() const;

    /// Makes room for the rows of a step, in pages that no other text has; the rows of the step before are gone. Throws
    /// InputError, std::bad_alloc; the stored tokens stay in both cases, and no room is taken.
    void begin_step(uint32_t rows);
    /// The step's rows were computed. Throws InputError if there is no room for so many, as in a text that has changed since.
    void end_step(uint32_t rows);

private:
    void leave_only(size_t pages) noexcept;

    std::shared_ptr<PagePool> pool_;
    std::vector<uint32_t> pages_;
    uint32_t length_ = 0, rows_ = 0;
    uint32_t begun_ = 0;  // rows that there is room for
};

}  // namespace foresay
