// The compiled directory without Python, beside what the memory allows: one read of 64 random bytes of as much memory.
// Usage: bare INSTANCES CHUNKS; prints one JSON line.
#include <sys/mman.h>
#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "directory.h"

using namespace lmcache::fleet;

namespace {

constexpr std::uint64_t SPACE = 1;
constexpr std::size_t LOOKUPS = 2'000'000;

volatile std::uint64_t sink;  // so that no loop is left out

double cpu_seconds() {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

std::uint64_t mixed(std::uint64_t value) {
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
    return value ^ (value >> 31);
}

// As keys.py makes them.
void make_hash(std::uint64_t instance, std::uint64_t chunk, std::uint8_t* hash) {
    std::uint64_t words[4];
    words[0] = mixed((instance << 32 | chunk) + 0x9e3779b97f4a7c15ULL);
    for (int word = 1; word < 4; ++word) words[word] = mixed(words[word - 1] + 0x9e3779b97f4a7c15ULL);
    std::memcpy(hash, words, sizeof words);
}

// Nanoseconds of `look(random)`, each of which gives a part of the next one's random number.
template <typename Look> double each_ns(Look look) {
    std::uint64_t random = 12345;
    const double begun = cpu_seconds();
    for (std::size_t count = 0; count < LOOKUPS; ++count) random = mixed(random + look(random));
    const double taken = cpu_seconds() - begun;
    sink = random;
    return taken / LOOKUPS * 1e9;
}

}  // namespace

int main(int count, char** words) {
    if (count != 3) return 2;
    const std::uint64_t instances = std::strtoull(words[1], nullptr, 10), chunks = std::strtoull(words[2], nullptr, 10);
    Directory directory(77);
    std::vector<std::uint8_t> hashes(chunks * HASH_BYTES);
    for (std::uint64_t instance = 1; instance <= instances; ++instance) {
        for (std::uint64_t chunk = 0; chunk < chunks; ++chunk) make_hash(instance, chunk, &hashes[chunk * HASH_BYTES]);
        directory.set_state(static_cast<Owner>(instance), OwnerState::Visible);
        directory.add(SPACE, {hashes.data(), chunks}, static_cast<Owner>(instance));
    }
    const std::size_t bytes = directory.bytes(), lines = bytes / 64;
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 1;
    madvise(memory, bytes, MADV_HUGEPAGE);
    std::memset(memory, 1, bytes);
    const auto* read = static_cast<const std::uint64_t*>(memory);

    std::vector<std::uint32_t> ends;
    std::vector<Owner> owners;
    std::uint8_t hash[HASH_BYTES];
    const auto make = [&](std::uint64_t random) { make_hash(1 + random % instances, (random >> 20) % chunks, hash); };
    const auto find = [&]() -> std::uint64_t {
        ends.clear();
        owners.clear();
        directory.find(SPACE, {hash, 1}, ends, owners);
        return owners.empty() ? (std::abort(), 0) : owners[0];
    };
    const double make_ns = each_ns([&](std::uint64_t random) { return make(random), std::uint64_t{hash[0]}; });
    const double read_ns = each_ns([&](std::uint64_t random) { return read[((random >> 32) * lines >> 32) * 8]; });
    const double random_ns = each_ns([&](std::uint64_t random) { return make(random), find(); });
    make(12345);
    const double same_ns = each_ns([&](std::uint64_t) { return find(); });
    std::printf("{\"read_ns\": %.1f, \"bare_random_ns\": %.1f, \"bare_same_ns\": %.1f}\n", read_ns, random_ns - make_ns, same_ns);
    std::fflush(stdout);
    std::_Exit(0);
}
