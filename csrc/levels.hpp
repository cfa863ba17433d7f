// The package is built for any x86-64; the loops that gain from wider vectors are compiled for three levels of it, and the
// loader takes the widest that the machine has. (glibc's loader; and the sanitizers are not ready when it does so.)
#pragma once

#include <cstdlib>  // which says whether there is glibc

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && __GNUC__ >= 12 && !defined(__clang__) && !FORESAY_SANITIZE
#define FORESAY_LEVELS 1
#define FORESAY_LEVEL(name) __attribute__((target(name)))
#define FORESAY_EACH_LEVEL __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FORESAY_LEVELS 0
#define FORESAY_LEVEL(name)
#define FORESAY_EACH_LEVEL
#endif
