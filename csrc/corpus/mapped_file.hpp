// A memory-mapped file: the bytes live as long as the object.
//
// A page that the file no longer has, because somebody truncated it, raises SIGBUS when it is read, which ends the
// process. Mappings for reading are guarded: such a page becomes zeros, and `cut` says so from then on.
#pragma once
#include <cstddef>
#include <string>
#include <utility>

namespace foresay {

struct MappedRange;

class MappedFile {
public:
    enum class Access { kRead, kWrite };

    MappedFile() = default;

    /// Maps `length` bytes of an open file; the descriptor may be closed afterwards. Only mappings for reading are
    /// guarded. Throws std::system_error, CapacityError where too many files are mapped for reading.
    MappedFile(int descriptor, size_t length, Access access, const std::string& path);
    MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }
    MappedFile& operator=(MappedFile&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(length_, other.length_);
        std::swap(range_, other.range_);
        return *this;
    }
    ~MappedFile();

    char* data() const noexcept { return data_; }
    size_t size() const noexcept { return length_; }
    /// Whether a page was read that the file no longer had: it has been zeros since then.
    bool cut() const noexcept;

private:
    char* data_ = nullptr;
    size_t length_ = 0;
    MappedRange* range_ = nullptr;  // null: not guarded
};

}  // namespace foresay
