// What tenants and groups that nobody uses have in common.
#pragma once

#include <cstddef>

namespace foresay {

/// Of shared pointers in a map, the one that only the map holds and whose `used` is the least; the end if all are in use.
template <class Map>
auto oldest_idle(Map& items) {
    auto oldest = items.end();
    for (auto it = items.begin(); it != items.end(); ++it)
        if (it->second.use_count() == 1 && (oldest == items.end() || it->second->used < oldest->second->used)) oldest = it;
    return oldest;
}

/// Drops such until there are at most `most` items, or all are in use.
template <class Map>
void drop_idle(Map& items, size_t most) {
    while (items.size() > most) {
        const auto oldest = oldest_idle(items);
        if (oldest == items.end()) return;
        items.erase(oldest);
    }
}

}  // namespace foresay
