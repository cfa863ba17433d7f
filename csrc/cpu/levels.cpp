#include "cpu/levels.hpp"

#include <cstdlib>
#include <span>

#include "errors.hpp"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace foresay {
namespace {

/// A level that this kind of processor may have.
struct Kind {
    const char* name;
    const Kernels& kernels;
    const char* missing;  // why it cannot be run here; null: it can
};

[[maybe_unused]] constexpr const char* kNotThere = "this processor does not have it";

#if defined(__x86_64__) && defined(__linux__)

const char* missing_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") ? nullptr : kNotThere; }

const char* missing_avx512() {
    const bool there = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                       __builtin_cpu_supports("avx512vl");
    return there ? missing_avx2() : kNotThere;
}

const char* missing_vnni() { return __builtin_cpu_supports("avx512vnni") ? missing_avx512() : kNotThere; }

/// Tiles have to be asked for, because they make every thread's state larger.
const char* missing_amx() {
    constexpr long kAskFor = 0x1023, kTileData = 18;
    unsigned a, b, c, d;
    const bool there = !missing_vnni() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) && (d >> 24 & 1);
    if (!there) return kNotThere;
    return syscall(SYS_arch_prctl, kAskFor, kTileData) == 0 ? nullptr : "the system does not allow its tiles";
}

#elif defined(__aarch64__)

#ifdef __linux__

const char* missing_dotprod() {
    constexpr unsigned long kDots = 1ul << 20;  // HWCAP_ASIMDDP
    return getauxval(AT_HWCAP) & kDots ? nullptr : kNotThere;
}

const char* missing_i8mm() {
    constexpr unsigned long kBoth = 1ul << 13 | 1ul << 14;  // HWCAP2_I8MM, HWCAP2_BF16
    return (getauxval(AT_HWCAP2) & kBoth) == kBoth ? missing_dotprod() : kNotThere;
}

#else

const char* missing_dotprod() { return "the core cannot ask this system for it"; }
const char* missing_i8mm() { return missing_dotprod(); }

#endif

#endif

/// The best first.
const std::vector<Kind>& kinds() {
    static const std::vector<Kind> found = [] {
        std::vector<Kind> all;
        const auto add = [&](const char* name, const Kernels& kernels, const char* missing) {
            all.push_back({name, kernels, !missing && !kernels.name ? "the core was built without it" : missing});
        };
#if defined(__x86_64__) && defined(__linux__)
        add("amx", kAmx, missing_amx());
        add("vnni", kVnni, missing_vnni());
        add("avx512", kAvx512, missing_avx512());
        add("avx2", kAvx2, missing_avx2());
#elif defined(__aarch64__)
        add("i8mm", kI8mm, missing_i8mm());
        add("dotprod", kDotprod, missing_dotprod());
        add("neon", kNeon, nullptr);
#endif
        add("plain", kPlain, nullptr);
        return all;
    }();
    return found;
}

const Kernels* found(std::string_view name) {
    for (const Kernels* kernels : levels())
        if (name == kernels->name) return kernels;
    return nullptr;
}

std::string valid() {
    std::string names;
    for (const Kernels* kernels : levels()) names += (names.empty() ? "" : ", ") + std::string(kernels->name);
    return names;
}

/// What FORESAY_CPU says; empty: nothing.
std::string_view forced() {
    const char* const value = std::getenv("FORESAY_CPU");
    return value ? value : "";
}

/// Of an environment variable, for a sentence: other bytes than printable ones as dots, and not without end.
std::string shown(std::string_view value) {
    constexpr size_t kMost = 40;
    std::string out;
    for (const char letter : value.substr(0, kMost)) out += letter >= ' ' && letter <= '~' ? letter : '.';
    return value.size() > kMost ? out + "..." : out;
}

}  // namespace

const std::vector<const Kernels*>& levels() {
    static const std::vector<const Kernels*> offered = [] {
        std::vector<const Kernels*> all;
        for (const Kind& kind : kinds())
            if (!kind.missing) all.push_back(&kind.kernels);
        return all;
    }();
    return offered;
}

const Kernels& level_of(std::string_view name) {
    if (!name.empty()) {
        if (const Kernels* const kernels = found(name)) return *kernels;
        throw InputError("level \"", shown(name), "\" cannot be run here; expected ", valid());
    }
    static const Kernels& used = []() -> const Kernels& {  // tried again by the next call if this throws
        const std::string_view wanted = forced();
        if (wanted.empty()) return *levels().front();
        if (const Kernels* const kernels = found(wanted)) return *kernels;
        throw InputError("the environment variable FORESAY_CPU is \"", shown(wanted), "\", a level that cannot be run here; expected ",
                         valid(), ", or nothing, which means the first of them");
    }();
    return used;
}

std::vector<std::pair<std::string, std::string>> better_levels() {
    const std::string used = level_of().name;
    std::vector<std::pair<std::string, std::string>> better;
    for (const Kind& kind : kinds()) {
        if (kind.name == used) break;
        better.emplace_back(kind.name, kind.missing ? kind.missing : used + " is forced by FORESAY_CPU");
    }
    return better;
}

}  // namespace foresay
