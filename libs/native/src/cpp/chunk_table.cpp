#include "chunk_table.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <unordered_map>
#include <unordered_set>

extern "C" {
#include "blake3.h"
}

namespace lmcache {

namespace {

constexpr std::size_t ALIKE_MAX = 2;
constexpr std::size_t MATCHES_MAX = 8;
constexpr std::size_t WINDOWS_AT_ONCE = 64;  // whose memory is asked for before the first of them is looked at
constexpr std::size_t WORD_BYTES = sizeof(std::uint32_t);

// factor * number + more, modulo the prime, of which all three are remainders, or `more` a token.
std::uint64_t modular(std::uint64_t factor, std::uint64_t number, std::uint64_t more) {
    __extension__ using Product = unsigned __int128;
    const Product product = static_cast<Product>(factor) * number + more;
    const std::uint64_t sum = (static_cast<std::uint64_t>(product) & CHUNK_PRIME) + static_cast<std::uint64_t>(product >> 61);
    return sum >= CHUNK_PRIME ? sum - CHUNK_PRIME : sum;
}

std::size_t bucket_count(std::size_t chunks_max) {
    return std::size_t{1} << std::bit_width(3 * chunks_max / 2);  // 1.5 to 3 for each chunk
}

}  // namespace

ChunkTable::ChunkTable(std::size_t chunk_tokens, std::size_t chunks_max, std::uint64_t multiplier, const std::uint8_t* key)
    : length_(chunk_tokens),
      chunks_max_(chunks_max),
      multiplier_(multiplier),
      top_(1),
      bucket_mask_(bucket_count(chunks_max) - 1),
      buckets_(bucket_mask_ + 1),
      nodes_(chunks_max + 1),
      chunks_(chunks_max + 1) {
    for (std::size_t at = 0; at < length_; ++at) top_ = modular(top_, multiplier_, 0);
    std::memcpy(key_, key, sizeof key_);
}

std::int64_t ChunkTable::add(std::uint16_t space, std::uint64_t mask, const std::uint32_t* words, const std::uint8_t* hash,
                             std::uint32_t place, std::uint64_t parent) {
    const std::uint64_t wanted = fingerprint(words) ^ mask;
    std::uint8_t content[CHUNK_DIGEST_BYTES];
    digest(words, content);
    std::uint32_t alike[ALIKE_MAX], count = 0;
    for (std::uint32_t each = buckets_[wanted & bucket_mask_]; each != 0; each = nodes_[each].next) {
        if (nodes_[each].fingerprint != wanted || nodes_[each].space != space || !has_digest(each, content)) continue;
        if (std::memcmp(chunks_[each].hash, hash, CHUNK_HASH_BYTES) == 0) {
            nodes_[each].missed = 0;
            touch(each);
            return -1;
        }
        alike[count++] = each;
    }
    std::uint32_t entry;
    if (count == ALIKE_MAX) {
        entry = alike[is_missed(alike[0]) ? 0 : ALIKE_MAX - 1];
    } else {
        entry = used_ < chunks_max_ ? static_cast<std::uint32_t>(++used_) : chunks_[0].newer;
    }
    Node& node = nodes_[entry];
    const std::uint16_t lost = node.space;
    if (lost != 0) remove(entry);
    Chunk& chunk = chunks_[entry];
    std::memcpy(chunk.digest, content, sizeof content);
    std::memcpy(chunk.hash, hash, sizeof chunk.hash);
    std::memcpy(chunk.parent, &parent, sizeof parent);
    chunk.place = place;
    std::uint32_t& bucket = buckets_[wanted & bucket_mask_];
    node = {wanted, bucket, space, 0};
    bucket = entry;
    chain(entry, chunks_[0].older, 0);
    return lost;
}

void ChunkTable::note(std::size_t entry, const std::uint8_t* hash, bool is_there) {
    if (entry == 0 || entry > used_ || std::memcmp(chunks_[entry].hash, hash, CHUNK_HASH_BYTES) != 0) return;
    const std::uint32_t noted = static_cast<std::uint32_t>(entry);
    nodes_[entry].missed = is_there ? 0 : 1;
    if (is_there) {
        touch(noted);
    } else {
        unchain(noted);
        chain(noted, 0, chunks_[0].newer);
    }
}

// --- one prompt

class ChunkTable::Search {
public:
    Search(const ChunkTable& table, std::uint16_t space, std::uint64_t mask, const std::uint32_t* words, std::size_t count)
        : table_(table), space_(space), mask_(mask), words_(words), last_(count - table.length_), sums_(count + 1) {
        for (std::size_t at = 0; at < count; ++at) sums_[at + 1] = modular(sums_[at], table.multiplier_, words[at]);
        most_ = MATCHES_MAX * (count / table.length_);
    }

    std::vector<ChunkMatch> run(std::size_t stride) {
        const std::size_t windows = last_ / stride + 1;
        for (std::size_t first = 0; first < windows && starts_.size() < most_; first += WINDOWS_AT_ONCE) {
            look(first * stride, std::min(WINDOWS_AT_ONCE, windows - first), stride);
        }
        follow();
        std::stable_sort(found_.begin(), found_.end(), [](const auto& a, const auto& b) { return a.start < b.start; });
        return std::move(found_);
    }

private:
    // Windows from `start` on.
    void look(std::size_t start, std::size_t count, std::size_t stride) {
        std::uint64_t wanted[WINDOWS_AT_ONCE];
        std::uint32_t entries[WINDOWS_AT_ONCE];
        for (std::size_t at = 0; at < count; ++at) {
            wanted[at] = fingerprint(start + at * stride);
            __builtin_prefetch(&table_.buckets_[wanted[at] & table_.bucket_mask_]);
        }
        for (std::size_t at = 0; at < count; ++at) {
            entries[at] = table_.buckets_[wanted[at] & table_.bucket_mask_];
            __builtin_prefetch(&table_.nodes_[entries[at]]);
        }
        for (std::size_t at = 0; at < count && starts_.size() < most_; ++at) {
            std::uint32_t entry = entries[at];
            while (entry != 0 && table_.nodes_[entry].fingerprint != wanted[at]) entry = table_.nodes_[entry].next;
            if (entry != 0) propose(start + at * stride, wanted[at]);
        }
    }

    // Of windows that overlap and have the same tokens, the first one counts.
    void propose(std::size_t start, std::uint64_t wanted) {
        const auto before = latest_.find(wanted);
        if (before != latest_.end() && start < before->second + table_.length_ &&
            std::memcmp(words_ + before->second, words_ + start, table_.length_ * WORD_BYTES) == 0) {
            return;
        }
        add(start, wanted);
        latest_[wanted] = start;
    }

    // Right behind each match.
    void follow() {
        std::vector<std::size_t> ends;
        for (const ChunkMatch& match : found_) {
            const std::size_t end = match.start + table_.length_;
            if (ends.empty() || ends.back() != end) ends.push_back(end);
        }
        while (!ends.empty() && starts_.size() < most_) {
            const std::size_t start = ends.back();
            ends.pop_back();
            if (start <= last_ && !starts_.contains(start) && add(start, fingerprint(start))) {
                ends.push_back(start + table_.length_);
            }
        }
    }

    bool add(std::size_t start, std::uint64_t wanted) {
        std::uint8_t content[CHUNK_DIGEST_BYTES];
        bool has_content = false, any = false;
        for (std::uint32_t each = table_.buckets_[wanted & table_.bucket_mask_]; each != 0; each = table_.nodes_[each].next) {
            if (table_.nodes_[each].fingerprint != wanted || table_.nodes_[each].space != space_) continue;
            if (!has_content) table_.digest(words_ + start, content);
            has_content = true;
            if (!table_.has_digest(each, content)) continue;
            found_.push_back({start, each});
            any = true;
        }
        if (any) starts_.insert(start);
        return any;
    }

    std::uint64_t fingerprint(std::size_t start) const {
        const std::uint64_t before = modular(sums_[start], table_.top_, 0), behind = sums_[start + table_.length_];
        return (behind >= before ? behind - before : behind + CHUNK_PRIME - before) ^ mask_;
    }

    const ChunkTable& table_;
    const std::uint16_t space_;
    const std::uint64_t mask_;
    const std::uint32_t* const words_;
    const std::size_t last_;
    std::vector<std::uint64_t> sums_;
    std::size_t most_;
    std::vector<ChunkMatch> found_;
    std::unordered_set<std::size_t> starts_;
    std::unordered_map<std::uint64_t, std::size_t> latest_;  // start by fingerprint
};

std::vector<ChunkMatch> ChunkTable::match(std::uint16_t space, std::uint64_t mask, const std::uint32_t* words, std::size_t count,
                                          std::size_t stride) const {
    if (count < length_) return {};
    return Search(*this, space, mask, words, count).run(stride);
}

// --- entries

std::uint64_t ChunkTable::fingerprint(const std::uint32_t* words) const {
    std::uint64_t sum = 0;
    for (std::size_t at = 0; at < length_; ++at) sum = modular(sum, multiplier_, words[at]);
    return sum;
}

void ChunkTable::digest(const std::uint32_t* words, std::uint8_t* digest) const {
    blake3_hasher hasher;
    blake3_hasher_init_keyed(&hasher, key_);
    blake3_hasher_update(&hasher, words, length_ * WORD_BYTES);
    blake3_hasher_finalize(&hasher, digest, CHUNK_DIGEST_BYTES);
}

bool ChunkTable::has_digest(std::uint32_t entry, const std::uint8_t* digest) const {
    return std::memcmp(chunks_[entry].digest, digest, CHUNK_DIGEST_BYTES) == 0;
}

// Out of its bucket and the chain; its place is used at once.
void ChunkTable::remove(std::uint32_t entry) {
    std::uint32_t* link = &buckets_[nodes_[entry].fingerprint & bucket_mask_];
    while (*link != entry) link = &nodes_[*link].next;
    *link = nodes_[entry].next;
    unchain(entry);
}

void ChunkTable::touch(std::uint32_t entry) {
    unchain(entry);
    chain(entry, chunks_[0].older, 0);
}

// Put it between two neighbours.
void ChunkTable::chain(std::uint32_t entry, std::uint32_t older, std::uint32_t newer) {
    chunks_[entry].older = older;
    chunks_[entry].newer = newer;
    chunks_[older].newer = chunks_[newer].older = entry;
}

void ChunkTable::unchain(std::uint32_t entry) {
    const std::uint32_t older = chunks_[entry].older, newer = chunks_[entry].newer;
    chunks_[older].newer = newer;
    chunks_[newer].older = older;
}

}  // namespace lmcache
