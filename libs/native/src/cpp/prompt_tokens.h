// Prompts from their wire form, a run of msgpack integers, to the hashes of their chunks.  Knows nothing of Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

extern "C" {
#include "blake3.h"
}

namespace lmcache {

constexpr std::size_t TOKEN_BYTES = 4;

struct Prompt {
    std::vector<std::uint8_t> hashes;
    std::vector<std::size_t> ends;
    std::vector<std::uint8_t> rest;
    std::size_t end = 0;
    const char* fault = nullptr;
};

inline std::uint64_t big_endian(const std::uint8_t* data, std::size_t size) {
    std::uint64_t value = 0;
    for (std::size_t at = 0; at < size; ++at) value = value << 8 | data[at];
    return value;
}

// Reads msgpack integers one after the other.
class Tokens {
public:
    Tokens(const std::uint8_t* at, const std::uint8_t* end) : at_(at), end_(end) {}

    const std::uint8_t* at() const { return at_; }
    const char* fault() const { return fault_; }

    // The next one, or false with a fault.
    bool next(std::uint32_t& token) {
        if (at_ == end_) return fail("the frame ends before the last token");
        const std::uint8_t lead = *at_;
        if (lead < 0x80) {
            token = lead;
            ++at_;
            return true;
        }
        if (lead >= 0xE0) return fail(OUT_OF_RANGE);
        if (lead < 0xCC || lead > 0xD3) return fail("a token is not an integer");
        const std::size_t size = std::size_t{1} << (lead & 3);
        if (static_cast<std::size_t>(end_ - at_) < 1 + size) return fail("the frame ends within a token");
        const std::uint64_t value = big_endian(at_ + 1, size);
        const bool negative = lead >= 0xD0 && (at_[1] & 0x80) != 0;
        if (negative || value > UINT32_MAX) return fail(OUT_OF_RANGE);
        token = static_cast<std::uint32_t>(value);
        at_ += 1 + size;
        return true;
    }

private:
    static constexpr const char* OUT_OF_RANGE = "a token is below 0 or above 4294967295";

    bool fail(const char* fault) {
        fault_ = fault;
        return false;
    }

    const std::uint8_t* at_;
    const std::uint8_t* end_;
    const char* fault_ = nullptr;
};

inline void put(std::uint8_t* to, std::uint32_t token) {
    to[0] = static_cast<std::uint8_t>(token >> 24);
    to[1] = static_cast<std::uint8_t>(token >> 16);
    to[2] = static_cast<std::uint8_t>(token >> 8);
    to[3] = static_cast<std::uint8_t>(token);
}

// Fills `prompt.rest`, which begins with the carry, chunk by chunk; 0 bytes per chunk: everything stays in it.
inline void decode(Prompt& prompt, const std::uint8_t* begin, const std::uint8_t* end, std::size_t count,
            std::size_t chunk_bytes, std::vector<std::uint8_t> previous) {
    Tokens tokens(begin, end);
    std::size_t filled = prompt.rest.size();
    prompt.rest.resize(chunk_bytes != 0 ? chunk_bytes : filled + TOKEN_BYTES * count);
    std::uint8_t digest[BLAKE3_OUT_LEN];
    for (std::size_t read = 0; read < count; ++read) {
        std::uint32_t token = 0;
        if (!tokens.next(token)) {
            prompt.fault = tokens.fault();
            return;
        }
        put(prompt.rest.data() + filled, token);
        filled += TOKEN_BYTES;
        if (filled != chunk_bytes) continue;
        blake3_hasher hasher;
        blake3_hasher_init(&hasher);
        blake3_hasher_update(&hasher, previous.data(), previous.size());
        blake3_hasher_update(&hasher, prompt.rest.data(), chunk_bytes);
        blake3_hasher_finalize(&hasher, digest, sizeof digest);
        previous.assign(digest, digest + sizeof digest);
        prompt.hashes.insert(prompt.hashes.end(), digest, digest + sizeof digest);
        prompt.ends.push_back(static_cast<std::size_t>(tokens.at() - begin));
        filled = 0;
    }
    prompt.rest.resize(filled);
    prompt.end = static_cast<std::size_t>(tokens.at() - begin);
}

}  // namespace lmcache
