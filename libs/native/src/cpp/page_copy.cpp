#include "page_copy.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <string>
#include <thread>

#include "checked_numbers.h"
#include "fault_guard.h"
#include "row_copy.h"

namespace lmcache {

namespace {

// Starting and joining a thread takes some 25 us; this many bytes take more than ten times that.
constexpr std::uint64_t BYTES_PER_THREAD = std::uint64_t{4} << 20;
// From here on caches do not help: the target was not in them, and will have left them when it is read.
constexpr std::uint64_t STREAMED_BYTES = std::uint64_t{512} << 10;

// Processors read ahead by themselves, but not into another page: where runs are no longer than this, it shows.
constexpr std::uint64_t AHEAD_BYTES = std::uint64_t{16} << 10;

// Copies one plane after the other, a plane being one object's part of one layer's keys or values.
class Planes {
public:
    explicit Planes(const PageCopy& copy)
        : copy_(copy), shape_(copy.shape), slots_(copy.blocks_per_object() * copy.shape.slots_per_block) {
        if (copy.bytes() >= STREAMED_BYTES) streaming_ = streaming_copy();
    }

    std::uint64_t count() const {
        return copy_.objects.size() * shape_.kv_axis * (copy_.end_layer - copy_.first_layer);
    }

    // Copies planes until none is left or a copy was stopped.  Several threads may call it.
    void take() {
        for (std::uint64_t plane; !stopped_ && (plane = next_.fetch_add(1, std::memory_order_relaxed)) < count();) {
            copy_plane(plane);
        }
    }

    void stop() { stopped_ = true; }
    bool stopped() const { return stopped_; }

private:
    void copy_plane(std::uint64_t plane) const {
        const std::uint64_t layers = copy_.end_layer - copy_.first_layer;
        const std::uint64_t object = plane / (shape_.kv_axis * layers);
        const std::uint64_t kv = plane / layers % shape_.kv_axis;
        const std::uint64_t place = kv * shape_.layers + copy_.first_layer + plane % layers;
        const std::uint64_t tokens = copy_.objects[object] + place * slots_ * shape_.slot_bytes();
        const std::uint64_t per_object = copy_.blocks_per_object(), per_block = shape_.slots_per_block;
        const std::int64_t* blocks = copy_.blocks.data() + object * per_object;
        for (std::uint64_t slot = object == 0 ? copy_.skip_slots : 0; slot < slots_;) {
            const std::uint64_t first = slot / per_block;
            std::uint64_t end = first + 1;
            if (blocks[first] >= 0) {
                while (shape_.adjacent() && end < per_object && blocks[end] == blocks[end - 1] + 1) ++end;
                const std::uint64_t page = block_of(place, blocks[first]) + slot % per_block * shape_.slot_stride;
                const bool more = copy_.direction == Direction::gather && end < per_object && blocks[end] >= 0;
                const std::byte* ahead = more ? at(block_of(place, blocks[end])) : nullptr;
                copy_slots(page, tokens + slot * shape_.slot_bytes(), end * per_block - slot, ahead);
            }
            slot = end * per_block;
        }
    }

    std::uint64_t block_of(std::uint64_t place, std::int64_t block) const {
        return copy_.bases[place] + static_cast<std::uint64_t>(block) * shape_.block_stride;
    }

    void copy_slots(std::uint64_t page, std::uint64_t object, std::uint64_t slots, const std::byte* ahead) const {
        const bool gather = copy_.direction == Direction::gather;
        std::byte* to = at(gather ? object : page);
        const std::byte* from = at(gather ? page : object);
        Rows rows;
        if (slots * shape_.slot_bytes() <= AHEAD_BYTES) rows.ahead = ahead;
        if (shape_.token_major()) {
            rows.bytes = slots * shape_.slot_bytes();
        } else {
            rows.slots = slots;
            rows.heads = shape_.heads;
            rows.bytes = shape_.head_bytes;
            rows.to_slot = gather ? shape_.slot_bytes() : shape_.slot_stride;
            rows.to_head = gather ? shape_.head_bytes : shape_.head_stride;
            rows.from_slot = gather ? shape_.slot_stride : shape_.slot_bytes();
            rows.from_head = gather ? shape_.head_stride : shape_.head_bytes;
        }
        (rows.whole_lines(to) ? streaming_ : copy_cached)(to, from, rows);
    }

    const PageCopy& copy_;
    const PageShape& shape_;
    const std::uint64_t slots_;
    RowCopy streaming_ = copy_cached;
    std::atomic<std::uint64_t> next_ = 0;
    std::atomic<bool> stopped_ = false;
};

void take_guarded(Planes& planes) {
    if (!run_guarded([](void* argument) { static_cast<Planes*>(argument)->take(); }, &planes)) planes.stop();
    drain_streams();
}

// Threads started while this lives get no signals but those of their own faults: the others are the interpreter's.
class SignalsBlocked {
public:
    SignalsBlocked() {
        sigset_t most;
        sigfillset(&most);
        for (const int fault : {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) sigdelset(&most, fault);
        pthread_sigmask(SIG_BLOCK, &most, &before_);
    }
    SignalsBlocked(const SignalsBlocked&) = delete;
    SignalsBlocked& operator=(const SignalsBlocked&) = delete;
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

private:
    sigset_t before_;
};

}  // namespace

std::uint64_t PageCopy::bytes() const {
    const std::uint64_t per_block = shape.slots_per_block, per_object = blocks_per_object();
    std::uint64_t slots = 0;
    for (std::size_t index = 0; index < blocks.size(); ++index) {
        if (blocks[index] < 0) continue;
        const std::uint64_t begin = index * per_block;
        const std::uint64_t skipped = index < per_object && skip_slots > begin ? skip_slots - begin : 0;
        slots += per_block - std::min(skipped, per_block);
    }
    return slots * shape.kv_axis * (end_layer - first_layer) * shape.slot_bytes();
}

void check(const PageCopy& copy) {
    const PageShape& shape = copy.shape;
    if (shape.kv_axis > 2) refuse("kv_axis must be 1 or 2, and is " + text(shape.kv_axis));
    if (copy.first_layer > copy.end_layer || copy.end_layer > shape.layers) {
        refuse("layers " + text(copy.first_layer) + " to " + text(copy.end_layer) + " are not within 0 to " + text(shape.layers));
    }
    const std::uint64_t planes = times(shape.kv_axis, shape.layers, "the layers");
    if (copy.bases.size() != planes) {
        refuse("bases must have kv_axis * layers = " + text(planes) + " addresses, and has " + text(copy.bases.size()));
    }
    const std::size_t objects = copy.objects.size();
    if (objects == 0 ? !copy.blocks.empty() : copy.blocks.empty() || copy.blocks.size() % objects != 0) {
        refuse("blocks must be as many for each object, and there are " + text(copy.blocks.size()) + " for " + text(objects));
    }
    const std::uint64_t slots = times(copy.blocks_per_object(), shape.slots_per_block, "an object");
    if (copy.skip_slots > slots) refuse("skip_slots is " + text(copy.skip_slots) + ", and an object has " + text(slots));

    const std::uint64_t slot_bytes = times(shape.heads, shape.head_bytes, "a slot");
    const std::uint64_t object_bytes = times(times(slots, slot_bytes, "an object"), planes, "an object");
    times(object_bytes, objects, "the copy");
    check_addresses(copy.objects, object_bytes, "objects");

    std::int64_t last = 0;
    for (std::size_t index = 0; index < copy.blocks.size(); ++index) {
        if (copy.blocks[index] < -1) refuse("blocks[" + text(index) + "] is " + std::to_string(copy.blocks[index]) + ", and no block");
        last = copy.blocks[index] > last ? copy.blocks[index] : last;
    }
    std::uint64_t extent = times(static_cast<std::uint64_t>(last), shape.block_stride, "the last block");
    extent = plus(extent, times(shape.slots_per_block - 1, shape.slot_stride, "a block"), "the last block");
    extent = plus(extent, times(shape.heads - 1, shape.head_stride, "a slot of a block"), "the last block");
    extent = plus(extent, shape.head_bytes, "the last block");
    // Runs of a whole block are measured by its bytes and not by its strides.
    extent = plus(extent, times(shape.slots_per_block, slot_bytes, "a block"), "the last block");
    check_addresses(copy.bases, extent, "bases");
}

bool run(const PageCopy& copy) {
    install_fault_guard();
    Planes planes(copy);
    const std::uint64_t useful = std::min(planes.count(), copy.bytes() / BYTES_PER_THREAD);
    std::vector<std::thread> others;
    if (useful > 1 && copy.threads > 1) {
        const SignalsBlocked blocked;
        try {
            const std::uint64_t count = std::min<std::uint64_t>(copy.threads, useful) - 1;
            others.reserve(count);
            for (std::uint64_t other = 0; other < count; ++other) others.emplace_back([&planes] { take_guarded(planes); });
        } catch (const std::exception&) {  // no more threads, or no memory for one: fewer do the same
        }
    }
    take_guarded(planes);
    for (std::thread& other : others) other.join();
    return !planes.stopped();
}

}  // namespace lmcache
