#include "directory_part.h"

#include <sys/mman.h>

#include <bit>
#include <cstring>
#include <new>
#include <utility>

namespace lmcache::fleet {

namespace {

constexpr std::size_t HUGE = std::size_t{2} << 20;
// Address space, which takes no memory until it is used: for two thousand million placements.
constexpr std::size_t RESERVED_MOST = std::size_t{64} << 30;
constexpr std::size_t RESERVED_LEAST = std::size_t{64} << 20;
constexpr std::size_t BLOCK_BYTES = LineMemory::BLOCK * sizeof(Line);
constexpr std::size_t FIRST_BLOCKS = 16;
constexpr double GROWTH = 1.25;
constexpr double FILL_MOST = 0.8;
constexpr std::size_t SET_BYTES_AHEAD = 256;
constexpr std::size_t GARBAGE_CELLS = 4096;
constexpr std::size_t SET_CELLS_MAX = std::size_t{1} << 32;

}  // namespace

LineMemory::LineMemory() : reserved_bytes_(RESERVED_MOST) {
    // Less where the process may not have as much (`ulimit -v`).
    const auto reserve = [this] {
        reserved_ = mmap(nullptr, reserved_bytes_ + HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        return reserved_ != MAP_FAILED;
    };
    while (!reserve()) {
        reserved_bytes_ /= 2;
        if (reserved_bytes_ < RESERVED_LEAST) throw std::bad_alloc();
    }
    begin_ = reinterpret_cast<Line*>((reinterpret_cast<std::uintptr_t>(reserved_) + HUGE - 1) / HUGE * HUGE);
}

LineMemory::~LineMemory() { munmap(reserved_, reserved_bytes_ + HUGE); }

std::uint32_t LineMemory::take() {
    const std::lock_guard lock(mutex_);
    if (taken_ == ready_) {
        if ((ready_ * BLOCK_BYTES) + HUGE > reserved_bytes_) throw std::bad_alloc();
        void* page = begin_ + ready_ * BLOCK;
        if (mprotect(page, HUGE, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
        madvise(page, HUGE, MADV_HUGEPAGE);  // a wish
        ready_ += HUGE / BLOCK_BYTES;
    }
    return static_cast<std::uint32_t>(taken_++);
}

std::size_t LineMemory::bytes() const {
    const std::lock_guard lock(mutex_);
    return ready_ * BLOCK_BYTES;
}

void DirectoryPart::prefetch_rest(Fingerprint key) const {
    const std::size_t size = size_;
    if (size == 0) return;
    const std::size_t at = home(key, size);
    const Line& line = this->line(at);
    if (line.used == ENTRIES) __builtin_prefetch(&this->line(next(at)), 1);
    if (sets_.empty()) return;
    for (std::size_t entry = 0; entry < ENTRIES; ++entry) {
        if (line.keys[entry] != key || entry >= line.used || (line.owners[entry] & SET) == 0) continue;
        const char* set = reinterpret_cast<const char*>(set_at(line.owners[entry]));
        for (std::size_t ahead = 0; ahead < SET_BYTES_AHEAD; ahead += sizeof(Line)) __builtin_prefetch(set + ahead);
        return;
    }
}

std::size_t DirectoryPart::bytes() const { return sets_.capacity() * sizeof(Owner); }

bool DirectoryPart::add(Fingerprint key, Owner owner) {
    if (used_ >= used_max_) grow();
    Place alone[OWN_ENTRIES_MAX];
    std::size_t count = 0;
    for (std::size_t at = home(key, size_);; at = next(at)) {
        Line& line = this->line(at);
        for (std::size_t entry = 0; entry < ENTRIES; ++entry) {
            if (line.keys[entry] != key) [[likely]] continue;
            if (entry >= line.used) break;
            const std::uint32_t has = line.owners[entry];
            if (has & SET) return add_to_set(line.owners[entry], key, owner);
            if (has == owner) return false;
            if (is_dead(has)) continue;  // the sweep comes
            alone[count++] = {at, entry};
        }
        if (line.passed != 0) continue;
        if (count == 0 && at == home(key, size_) && put(line, key, owner)) {  // as most do
            ++used_;
            return true;
        }
        break;
    }
    if (count < OWN_ENTRIES_MAX) {
        insert(key, owner);
        return true;
    }
    Owner owners[OWN_ENTRIES_MAX + 1];
    for (std::size_t each = 0; each < count; ++each) {
        owners[each] = static_cast<Owner>(line(alone[each].line).owners[alone[each].entry]);
    }
    owners[count] = owner;
    const std::uint32_t set = make_set(owners, count + 1, count + 1);
    line(alone[0].line).owners[alone[0].entry] = set;
    for (std::size_t each = count; each-- > 1;) erase(alone[each]);  // the last first, as `erase` moves what is behind
    return true;
}

bool DirectoryPart::remove(Fingerprint key, Owner owner) {
    const std::size_t size = size_;
    if (size == 0) return false;
    for (std::size_t at = home(key, size);; at = next(at)) {
        const Line& line = this->line(at);
        for (std::size_t entry = 0; entry < ENTRIES; ++entry) {
            if (line.keys[entry] != key) [[likely]] continue;
            if (entry >= line.used) break;
            const std::uint32_t has = line.owners[entry];
            if (has & SET) {
                if (!remove_from_set(has, owner)) return false;
                if (set_at(has)[0] == 0) erase({at, entry});
                return true;
            }
            if (has == owner) {
                erase({at, entry});
                return true;
            }
        }
        if (line.passed == 0) return false;
    }
}

void DirectoryPart::sweep(std::size_t first, std::size_t count) {
    const std::size_t end = std::min<std::size_t>(size_, first + count);
    for (std::size_t at = first; at < end; ++at) {
        Line& line = this->line(at);
        for (std::size_t entry = line.used; entry-- > 0;) {  // `erase` moves the last one
            const std::uint32_t has = line.owners[entry];
            if (has & SET) {
                Owner* set = set_at(has);
                Owner* kept = std::remove_if(set + 2, set + 2 + set[0], [this](Owner each) { return is_dead(each); });
                set[0] = static_cast<Owner>(kept - (set + 2));
                if (set[0] == 0) erase({at, entry});
            } else if (is_dead(has)) {
                erase({at, entry});
            }
        }
    }
    compact_sets();
}

// There is a free entry.
void DirectoryPart::insert(Fingerprint key, std::uint32_t owner) {
    for (std::size_t at = home(key, size_);; at = next(at)) {
        if (put(line(at), key, owner)) {
            ++used_;
            return;
        }
        ++line(at).passed;
    }
}

void DirectoryPart::erase(Place place) {
    Line& line = this->line(place.line);
    const Fingerprint key = line.keys[place.entry];
    if (line.owners[place.entry] & SET) drop_set(line.owners[place.entry]);
    --line.used;
    --used_;
    line.keys[place.entry] = line.keys[line.used];
    line.owners[place.entry] = line.owners[line.used];
    for (std::size_t at = home(key, size_); at != place.line; at = next(at)) --this->line(at).passed;
}

// In place, from the back: the line of a key only moves up, so that the lines from the one that is read on are done.  What is
// not to go there is set aside: little, of the first lines and behind the last one.
void DirectoryPart::grow() {
    const std::size_t old_size = size_;
    const std::size_t larger = static_cast<std::size_t>(next_lines_);
    std::vector<std::pair<Fingerprint, std::uint32_t>> aside;
    aside.reserve(used_);
    while (taken_ * LineMemory::BLOCK < larger) take_block();
    size_ = larger;
    used_ = 0;
    for (std::size_t at = old_size; at-- > 0;) {
        const Line line = this->line(at);
        this->line(at) = Line{};
        for (std::size_t entry = 0; entry < line.used; ++entry) {
            const std::uint32_t has = line.owners[entry];
            if ((has & SET) == 0 && is_dead(has)) continue;
            const std::size_t wanted = home(line.keys[entry], larger);
            std::size_t to = wanted;
            if (to >= at) {
                while (to < larger && !put(this->line(to), line.keys[entry], has)) ++to;
            }
            if (to < at || to == larger) {
                aside.emplace_back(line.keys[entry], has);
                continue;
            }
            ++used_;
            for (std::size_t full = wanted; full < to; ++full) ++this->line(full).passed;
        }
    }
    for (const auto& [key, owner] : aside) insert(key, owner);
    used_max_ = static_cast<std::size_t>(static_cast<double>(larger * ENTRIES) * FILL_MOST);
    next_lines_ *= GROWTH;
}

void DirectoryPart::take_block() {
    if (taken_ == 0 || (taken_ >= FIRST_BLOCKS && std::has_single_bit(taken_))) {
        auto more = std::make_unique<std::uint32_t[]>(std::max(FIRST_BLOCKS, 2 * taken_));
        if (taken_ > 0) std::copy_n(numbers_.back().get(), taken_, more.get());
        numbers_.push_back(std::move(more));
        blocks_ = numbers_.back().get();
    }
    numbers_.back()[taken_] = memory_->take();
    ++taken_;
}

bool DirectoryPart::put(Line& line, Fingerprint key, std::uint32_t owner) {
    if (line.used == ENTRIES) return false;
    line.keys[line.used] = key;
    line.owners[line.used] = owner;
    ++line.used;
    return true;
}

std::uint32_t DirectoryPart::make_set(const Owner* owners, std::size_t count, std::size_t capacity) {
    const std::size_t place = sets_.size();
    if (place + set_cells(capacity) > SET_CELLS_MAX) throw std::bad_alloc();
    if (sets_.capacity() < place + set_cells(capacity)) sets_.reserve(place + place / 4 + set_cells(capacity));
    sets_.resize(place + set_cells(capacity));
    Owner* set = sets_.data() + place;
    set[0] = static_cast<Owner>(count);
    set[1] = static_cast<Owner>(capacity);
    std::memcpy(set + 2, owners, count * sizeof(Owner));
    return SET | static_cast<std::uint32_t>(place / 2);
}

bool DirectoryPart::add_to_set(std::uint32_t& entry, Fingerprint key, Owner owner) {
    Owner* set = set_at(entry);
    const std::size_t count = set[0];
    for (std::size_t member = 0; member < count; ++member) {
        if (set[2 + member] == owner) return false;
    }
    if (count < set[1]) {
        set[2 + count] = owner;
        ++set[0];
        return true;
    }
    for (std::size_t member = 0; member < count; ++member) {
        if (is_dead(set[2 + member])) {
            set[2 + member] = owner;
            return true;
        }
    }
    std::vector<Owner> all(set + 2, set + 2 + count);
    all.push_back(owner);
    // A quarter more on average, not the same for each key: the sets of common keys would all grow in one report.
    const std::size_t more = all.size() / 8 + (key >> 8) % (all.size() / 4 + 1);
    const std::size_t capacity = std::min<std::size_t>(all.size() + more, UINT16_MAX);
    const std::uint32_t larger = make_set(all.data(), all.size(), capacity);
    drop_set(entry);
    entry = larger;
    compact_sets();
    return true;
}

bool DirectoryPart::remove_from_set(std::uint32_t entry, Owner owner) {
    Owner* set = set_at(entry);
    for (std::size_t member = 0; member < set[0]; ++member) {
        if (set[2 + member] != owner) continue;
        set[2 + member] = set[1 + set[0]];
        --set[0];
        return true;
    }
    return false;
}

void DirectoryPart::compact_sets() {
    if (garbage_ <= GARBAGE_CELLS || garbage_ <= (sets_.size() - garbage_) / 2) return;
    std::vector<Owner> packed;
    try {
        packed.reserve(sets_.size() - garbage_);
    } catch (const std::bad_alloc&) {
        return;  // later, when there is memory
    }
    for (std::size_t at = 0; at < size_; ++at) {
        Line& line = this->line(at);
        for (std::size_t entry = 0; entry < line.used; ++entry) {
            std::uint32_t& has = line.owners[entry];
            if ((has & SET) == 0) continue;
            const Owner* set = set_at(has);
            const std::size_t place = packed.size();
            packed.insert(packed.end(), set, set + set_cells(set[1]));
            has = SET | static_cast<std::uint32_t>(place / 2);
        }
    }
    sets_ = std::move(packed);
    garbage_ = 0;
}

}  // namespace lmcache::fleet
