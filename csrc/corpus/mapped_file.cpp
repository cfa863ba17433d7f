#include "corpus/mapped_file.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <mutex>
#include <system_error>

#include "errors.hpp"

namespace foresay {

/// What the signal handler has to know of a mapping. A range is free while `begin` is null.
struct MappedRange {
    std::atomic<char*> begin{nullptr};
    std::atomic<size_t> length{0};
    std::atomic<int> descriptor{-1};  // of the file, which stays open: its length is asked for
    std::atomic<size_t> kept{0};      // bytes before the first that the file has lost; all, while it is whole
};

namespace {

constexpr size_t kMostRanges = 1024;  // corpus files that are open at once; each holds a descriptor
MappedRange ranges[kMostRanges];
struct sigaction previous;  // who got SIGBUS before us
std::mutex opening;         // held while a range is taken or given back; the handler needs no lock
std::atomic<int> in_vain{0};  // reads in a row that were tried again though nothing was mended
constexpr int kMostInVain = 64;
std::atomic<int> mending{0};  // handlers that look at the ranges now: nothing is unmapped meanwhile

/// Puts zeros in place of the pages that the file has lost. Whether reading is to be tried again: the fault was in this
/// range, or, for a fault at an unknown address (0), more is lost than before. Only system calls, as a signal handler may.
bool mend(MappedRange& range, uintptr_t fault) {
    char* const begin = range.begin.load(std::memory_order_acquire);
    if (begin == nullptr) return false;
    const size_t length = range.length.load(std::memory_order_relaxed);
    const auto from = reinterpret_cast<uintptr_t>(begin);
    if (fault != 0 && (fault < from || fault - from >= length)) return false;
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    struct stat status {};
    if (fstat(range.descriptor.load(std::memory_order_relaxed), &status) != 0) return false;
    size_t kept = (static_cast<size_t>(status.st_size) + page - 1) / page * page;
    // A page may fault though the file is long enough: the disk failed, or the file has grown again meanwhile.
    if (fault != 0) kept = std::min(kept, (fault - from) / page * page);
    if (kept >= range.kept.load(std::memory_order_acquire)) return fault != 0;  // another thread has mended it
    if (mmap(begin + kept, length - kept, PROT_READ, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED)
        return false;
    range.kept.store(kept, std::memory_order_release);
    return true;
}

/// All others' faults go to whom they went before.
void pass_on(int number, siginfo_t* info, void* context) {
    if (previous.sa_flags & SA_SIGINFO) {
        previous.sa_sigaction(number, info, context);
    } else if (previous.sa_handler == SIG_IGN && info->si_code <= 0) {
        return;  // somebody sent it, and it was ignored
    } else if (previous.sa_handler == SIG_DFL || previous.sa_handler == SIG_IGN) {
        signal(number, SIG_DFL);  // the read faults again, and ends the process as it would have
        if (info->si_code <= 0) raise(number);  // somebody sent it: nothing will fault again
    } else {
        previous.sa_handler(number);
    }
}

void handle(int number, siginfo_t* info, void* context) {
    const int error = errno;
    const uintptr_t fault = info->si_code > 0 ? reinterpret_cast<uintptr_t>(info->si_addr) : 0;
    // Another handler that came after ours, as faulthandler's, may hand the signal on with `raise`, which tells no address:
    // then every file that has become shorter is mended, and the read is tried again. It is also tried where one was cut
    // before: two threads may have faulted at once. Whose fault it was shows when it comes again, with its address.
    const bool raised = info->si_code <= 0 && info->si_pid == getpid();
    bool again = false, cut = false;
    if (fault != 0 || raised) {
        mending.fetch_add(1);
        for (MappedRange& range : ranges) {
            again |= mend(range, fault);
            cut |= range.begin.load() != nullptr && range.kept.load() < range.length.load();
        }
        mending.fetch_sub(1);
        if (again) in_vain = 0;
        else if (raised && cut) again = in_vain.fetch_add(1) < kMostInVain;
    }
    errno = error;
    if (!again) pass_on(number, info, context);
}

/// Once, when the first file is mapped.
void catch_faults() {
    struct sigaction ours {};
    ours.sa_sigaction = handle;
    ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);
    sigaction(SIGBUS, &ours, &previous);
}

MappedRange& guard(char* begin, size_t length, int descriptor, const std::string& path) {
    static std::once_flag once;
    std::call_once(once, catch_faults);
    const std::lock_guard<std::mutex> lock(opening);
    for (MappedRange& range : ranges) {
        if (range.begin.load(std::memory_order_relaxed) != nullptr) continue;
        const int kept = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
        if (kept < 0) throw std::system_error(errno, std::generic_category(), "Cannot keep '" + path + "' open");
        range.descriptor.store(kept, std::memory_order_relaxed);
        range.length.store(length, std::memory_order_relaxed);
        range.kept.store(length, std::memory_order_relaxed);
        range.begin.store(begin, std::memory_order_release);
        return range;
    }
    throw CapacityError("'", path, "' cannot be opened: ", kMostRanges, " corpus files are open already, which is the most.");
}

}  // namespace

MappedFile::MappedFile(int descriptor, size_t length, Access access, const std::string& path) {
    const int protection = access == Access::kWrite ? PROT_READ | PROT_WRITE : PROT_READ;
    void* data = mmap(nullptr, length, protection, MAP_SHARED, descriptor, 0);
    if (data == MAP_FAILED)
        throw std::system_error(errno, std::generic_category(), "Cannot map '" + path + "' into memory");
    try {
        if (access == Access::kRead) range_ = &guard(static_cast<char*>(data), length, descriptor, path);
    } catch (...) {
        munmap(data, length);
        throw;
    }
    data_ = static_cast<char*>(data);
    length_ = length;
}

MappedFile::~MappedFile() {
    if (range_) {
        const std::lock_guard<std::mutex> lock(opening);
        range_->begin.store(nullptr);
        while (mending.load() > 0) {}  // one that has seen it may still map zeros there
        close(range_->descriptor.exchange(-1));
    }
    if (data_) munmap(data_, length_);
}

bool MappedFile::cut() const noexcept { return range_ && range_->kept.load(std::memory_order_acquire) < length_; }

}  // namespace foresay
