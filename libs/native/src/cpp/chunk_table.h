// Chunks by their tokens.  What each method does is in lmcache_blend_index/table.py; nothing here knows of Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

namespace lmcache {

// Memory that is zero, and that is taken from the machine only once it is written.
template <typename Value> class ZeroedArray {
public:
    explicit ZeroedArray(std::size_t count) : values_(static_cast<Value*>(std::calloc(count, sizeof(Value)))) {
        if (!values_) throw std::bad_alloc();
    }
    Value& operator[](std::size_t at) { return values_.get()[at]; }
    const Value& operator[](std::size_t at) const { return values_.get()[at]; }

private:
    struct Free {
        void operator()(Value* values) const { std::free(values); }
    };
    std::unique_ptr<Value, Free> values_;
};

constexpr std::size_t CHUNK_HASH_BYTES = 32;
constexpr std::size_t CHUNK_DIGEST_BYTES = 16;
constexpr std::size_t CHUNK_KEY_BYTES = 32;
constexpr std::uint64_t CHUNK_PRIME = (std::uint64_t{1} << 61) - 1;

struct ChunkMatch {
    std::size_t start;
    std::uint32_t entry;
};

// What an entry is beside its place in a bucket.
struct Chunk {
    std::uint8_t digest[CHUNK_DIGEST_BYTES];
    std::uint8_t hash[CHUNK_HASH_BYTES];
    std::uint8_t parent[8];  // without the gaps that an aligned number would make
    std::uint32_t place;
    std::uint32_t older;
    std::uint32_t newer;
};

class ChunkTable {
public:
    // `multiplier` is below CHUNK_PRIME; `key` has CHUNK_KEY_BYTES.
    ChunkTable(std::size_t chunk_tokens, std::size_t chunks_max, std::uint64_t multiplier, const std::uint8_t* key);

    std::size_t size() const { return used_; }
    std::size_t chunk_tokens() const { return length_; }

    // `words` are the tokens of one chunk.
    std::int64_t add(std::uint16_t space, std::uint64_t mask, const std::uint32_t* words, const std::uint8_t* hash, std::uint32_t place,
                     std::uint64_t parent);
    std::vector<ChunkMatch> match(std::uint16_t space, std::uint64_t mask, const std::uint32_t* words, std::size_t count,
                                  std::size_t stride) const;
    void note(std::size_t entry, const std::uint8_t* hash, bool is_there);

    const Chunk& chunk(std::size_t entry) const { return chunks_[entry]; }
    bool is_missed(std::size_t entry) const { return nodes_[entry].missed != 0; }

private:
    // What a prompt's windows are compared with: a quarter of a cache line.
    struct Node {
        std::uint64_t fingerprint;
        std::uint32_t next;
        std::uint16_t space;
        std::uint16_t missed;
    };
    class Search;

    std::uint64_t fingerprint(const std::uint32_t* words) const;
    void digest(const std::uint32_t* words, std::uint8_t* digest) const;
    bool has_digest(std::uint32_t entry, const std::uint8_t* digest) const;
    void remove(std::uint32_t entry);
    void touch(std::uint32_t entry);
    void chain(std::uint32_t entry, std::uint32_t older, std::uint32_t newer);
    void unchain(std::uint32_t entry);

    std::size_t length_;
    std::size_t chunks_max_;
    std::uint64_t multiplier_;
    std::uint64_t top_;
    std::uint8_t key_[CHUNK_KEY_BYTES];
    std::size_t used_ = 0;
    std::size_t bucket_mask_;
    // Entry 0 is none.  In the chain of all entries it comes before the oldest and behind the newest.
    ZeroedArray<std::uint32_t> buckets_;
    ZeroedArray<Node> nodes_;
    ZeroedArray<Chunk> chunks_;
};

}  // namespace lmcache
