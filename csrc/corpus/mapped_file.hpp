// A memory-mapped file: the bytes live as long as the object.
#pragma once
#include <cstddef>
#include <string>
#include <utility>

namespace foresay {

class MappedFile {
public:
    enum class Access { kRead, kWrite };

    MappedFile() = default;

    /// Maps `length` bytes of an open file; the descriptor may be closed afterwards. Throws std::system_error.
    MappedFile(int descriptor, size_t length, Access access, const std::string& path);
    MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }
    MappedFile& operator=(MappedFile&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(length_, other.length_);
        return *this;
    }
    ~MappedFile();

    char* data() const noexcept { return data_; }
    size_t size() const noexcept { return length_; }

private:
    char* data_ = nullptr;
    size_t length_ = 0;
};

}  // namespace foresay
