// What the processor has, for code that is compiled in several ways.
#pragma once

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace foresay {

#if defined(__x86_64__) && defined(__linux__)

inline bool has_v3() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
inline bool has_v4() {
    return has_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}
/// Tiles have to be asked for, because they make every thread's state larger.
inline bool has_tiles() {
    constexpr long kAskFor = 0x1023, kTileData = 18;
    unsigned a, b, c, d;
    const bool there = has_v4() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) && (d >> 24 & 1);
    return there && syscall(SYS_arch_prctl, kAskFor, kTileData) == 0;
}

#else

inline bool has_v3() { return false; }
inline bool has_v4() { return false; }
inline bool has_tiles() { return false; }

#endif

}  // namespace foresay
