#include "slab.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <mutex>
#include <new>
#include <vector>

namespace foresay::slab {
namespace {

constexpr size_t kLargest = size_t{1} << 20;  // larger pieces are mapped by themselves
constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

size_t resident(size_t bytes, size_t written) noexcept {
    return bytes <= kLargest ? bytes : std::min(bytes, (written + kHugePage - 1) / kHugePage * kHugePage);
}
#ifdef FORESAY_SANITIZE

// Each piece by itself, so that the address sanitizer sees where it ends.
void* allocate(size_t bytes) { return ::operator new(bytes, std::align_val_t{64}); }
void release(void* memory, size_t) noexcept { ::operator delete(memory, std::align_val_t{64}); }

#else

namespace {

constexpr size_t kRegion = size_t{4} << 20;
constexpr size_t kSmallest = 256;

/// Maps `bytes` (whole regions) at a multiple of kRegion, so that a piece's address tells its region.
void* map(size_t bytes) {
    const size_t wanted = bytes + kRegion;
    void* raw = mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) throw std::bad_alloc();
    const auto begin = reinterpret_cast<uintptr_t>(raw);
    const uintptr_t aligned = (begin + kRegion - 1) / kRegion * kRegion;
    if (aligned > begin) munmap(raw, aligned - begin);
    if (begin + wanted > aligned + bytes) munmap(reinterpret_cast<void*>(aligned + bytes), begin + wanted - aligned - bytes);
    void* memory = reinterpret_cast<void*>(aligned);
    madvise(memory, bytes, MADV_HUGEPAGE);  // advice: where the system has no huge pages, small ones serve
    return memory;
}

size_t whole_regions(size_t bytes) { return (bytes + kRegion - 1) / kRegion * kRegion; }

/// Powers of two, and halfway between them, so that at most a quarter is wasted.
size_t rounded(size_t bytes) {
    const size_t power = std::bit_ceil(std::max(bytes, kSmallest));
    return bytes <= power / 4 * 3 ? power / 4 * 3 : power;
}

size_t class_of(size_t size) { return 2 * static_cast<size_t>(std::bit_width(size - 1)) + (std::has_single_bit(size) ? 1 : 0); }

struct Class {  // pieces of one size
    std::vector<char*> free;
    size_t made = 0;  // free or in use
};

struct Region {
    size_t live = 0;  // bytes in use
    size_t used = 0;  // bytes handed out at least once
};

class Pool {
public:
    void* allocate(size_t size) {
        const std::lock_guard lock(mutex_);
        auto& [free, made] = classes_[class_of(size)];
        char* piece;
        if (!free.empty()) {
            piece = free.back();
            free.pop_back();
        } else {
            // A place for it to come back to: release() must not fail, so it must not allocate.
            if (free.capacity() <= made) free.reserve(2 * made + 1);
            if (!newest_ || newest_->used + size > kRegion) {
                newest_ = new (map(kRegion)) Region;
                newest_->used = 4096;  // the region's own record, and the pieces stay aligned
            }
            piece = reinterpret_cast<char*>(newest_) + newest_->used;
            newest_->used += size;
            ++made;
        }
        region_of(piece)->live += size;
        return piece;
    }

    void release(char* piece, size_t size) noexcept {
        const std::lock_guard lock(mutex_);
        classes_[class_of(size)].free.push_back(piece);  // where there is room for every piece that was made
        Region* region = region_of(piece);
        region->live -= size;
        if (region->live > 0) return;
        if (region == newest_) newest_ = nullptr;
        for (auto& [free, made] : classes_) made -= std::erase_if(free, [region](char* p) { return region_of(p) == region; });
        munmap(region, kRegion);
    }

private:
    static Region* region_of(char* piece) noexcept {
        return reinterpret_cast<Region*>(reinterpret_cast<uintptr_t>(piece) / kRegion * kRegion);
    }

    std::mutex mutex_;
    Region* newest_ = nullptr;
    std::array<Class, 64> classes_;
};

Pool& pool() {
    static Pool* const shared = new Pool;  // never destroyed: automata may outlive static objects
    return *shared;
}

}  // namespace

void* allocate(size_t bytes) {
    return bytes > kLargest ? map(whole_regions(bytes)) : pool().allocate(rounded(bytes));
}

void release(void* memory, size_t bytes) noexcept {
    if (!memory) return;
    if (bytes > kLargest) munmap(memory, whole_regions(bytes));
    else pool().release(static_cast<char*>(memory), rounded(bytes));
}

#endif

}  // namespace foresay::slab
