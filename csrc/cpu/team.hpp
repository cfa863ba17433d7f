// Runs one function on several threads, those of the process's OpenMP team if there is one.
//
// The workers of torch's team spin for a while after each piece of work. Threads of our own would have to share the cores
// with them; as members of the same team they do our work instead, and it begins at once.
#pragma once

#include <cstdint>

namespace foresay {

/// Whether there is a team to run on. Looks again until there is one: torch may be imported later.
bool team_found() noexcept;

/// Calls work(data) on up to `threads` threads, the caller's among them, and waits for all. `work` must not throw, and has
/// to be right whatever the number of threads that call it; 1 at least does.
void on_team(uint32_t threads, void (*work)(void*), void* data) noexcept;

}  // namespace foresay
