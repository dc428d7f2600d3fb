// The hash index of cached chunks against a plain list, with hashes that collide.
#include "../src/cpp/key_index.h"

#include "input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    Input input(data, size);
    lmcache::KeyIndex index;
    std::vector<std::pair<std::uint64_t, std::uint32_t>> there;
    std::uint32_t next = 0;
    while (input.left() != 0) {
        const std::uint64_t action = input.below(3);
        // One part, and few upper halves: everything lands next to everything else.
        const std::uint64_t hash = input.below(24) << 32;
        if (action == 0) {
            index.add(hash, next);
            there.emplace_back(hash, next++);
        } else if (action == 1 && !there.empty()) {
            const auto gone = there.begin() + static_cast<std::ptrdiff_t>(input.byte() % there.size());
            index.remove(gone->first, gone->second);
            there.erase(gone);
        }
        for (const auto& [known, slot] : there) {
            require(index.find(known, [slot = slot](std::uint32_t found) { return found == slot; }) == slot);
        }
        const bool any = std::any_of(there.begin(), there.end(), [hash](const auto& entry) { return entry.first == hash; });
        require((index.candidate(hash) >= 0) == any);
    }
    return 0;
}
