#include "corpus/mapped_file.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <system_error>

namespace foresay {

MappedFile::MappedFile(int descriptor, size_t length, Access access, const std::string& path) {
    const int protection = access == Access::kWrite ? PROT_READ | PROT_WRITE : PROT_READ;
    void* data = mmap(nullptr, length, protection, MAP_SHARED, descriptor, 0);
    if (data == MAP_FAILED)
        throw std::system_error(errno, std::generic_category(), "Cannot map '" + path + "' into memory");
    data_ = static_cast<char*>(data);
    length_ = length;
}

MappedFile::~MappedFile() {
    if (data_) munmap(data_, length_);
}

}  // namespace foresay
