// An operation on its way through a ring.
#pragma once

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "digest.h"
#include "operation_file.h"

namespace lmcache::io {

// An operation is moved in pieces, several at a time.
constexpr std::uint64_t RING_PIECE_BYTES = std::uint64_t{1} << 20;

// [0, hashed) hashed ... pieces that have come, in any order ... [asked, end) not asked for yet
class RingJob {
public:
    explicit RingJob(Operation&& taken) : operation(std::move(taken)), phase_{operation.head_bytes, operation.length}, asked_(phase_.begin) {
        if (operation.digest_from) {
            hashed_ = *operation.digest_from;
            come_.resize((operation.length + RING_PIECE_BYTES - 1) / RING_PIECE_BYTES);
        }
    }

    // Is there a piece to ask for, and how far does it go?
    bool has_more() const { return failed == 0 && asked_ < phase_.end; }
    Range next() {
        const std::uint64_t begin = asked_;
        asked_ = std::min(phase_.end, (begin / RING_PIECE_BYTES + 1) * RING_PIECE_BYTES);
        ++under_way_;
        return {begin, asked_};
    }

    // A piece, or what is left of one, is all there; or has failed.
    void came(Range piece) {
        --under_way_;
        if (!come_.empty()) come_[(piece.end - 1) / RING_PIECE_BYTES] = true;
    }
    void fail(int error) {
        --under_way_;
        if (failed == 0) failed = error;
    }

    bool may_hash() const {
        return operation.digest_from && failed == 0 && hashed_ < operation.length && come_[hashed_ / RING_PIECE_BYTES];
    }
    void hash_piece() {
        const std::uint64_t end = std::min(operation.length, (hashed_ / RING_PIECE_BYTES + 1) * RING_PIECE_BYTES);
        if (!digest.update(operation.memory + hashed_, end - hashed_)) failed = -EFAULT;
        hashed_ = end;
    }

    // Nothing of it is under way, and nothing is left to ask for or to hash.
    bool phase_over() const {
        const bool unhashed = operation.digest_from && hashed_ < operation.length;
        return under_way_ == 0 && (failed != 0 || (asked_ == phase_.end && !unhashed));
    }
    bool has_head_left() const { return failed == 0 && operation.head_bytes > 0 && phase_.begin > 0; }
    void begin_head() {
        phase_ = {0, operation.head_bytes};
        asked_ = 0;
    }

    Operation operation;
    OperationFile file;
    Digest digest;
    int failed = 0;
    bool waiting = false;  // is it in the queue of those with pieces to ask for?
    bool hashing = false;  // is it in the queue of those to be hashed?

private:
    Range phase_;
    std::uint64_t asked_;
    std::uint64_t hashed_ = 0;
    unsigned under_way_ = 0;
    std::vector<bool> come_;
};

}  // namespace lmcache::io
