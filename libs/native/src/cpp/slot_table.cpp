#include "slot_table.h"

#include <algorithm>
#include <random>

#include <nanobind/stl/optional.h>

namespace lmcache {

namespace {

// Far enough ahead that a line of memory is there when it is needed, and few enough that it still is.
constexpr std::size_t AHEAD = 16;

std::uint64_t load(const std::uint8_t* data) {
    std::uint64_t word;
    std::memcpy(&word, data, sizeof word);
    return word;
}

std::uint64_t fold(std::uint64_t left, std::uint64_t right) {
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(left) * right;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

}  // namespace

SlotTable::SlotTable() {
    // Engines choose tokens and with them hashes; with a seed of its own a table cannot be filled with one bucket's.
    std::random_device random;
    for (std::uint64_t& word : seed_) word = static_cast<std::uint64_t>(random()) << 32 | random();
}

std::uint64_t SlotTable::hashed(std::uint32_t space, const std::uint8_t* hash) const {
    const std::uint64_t low = fold(load(hash) ^ seed_[0], load(hash + 8) ^ seed_[1]);
    const std::uint64_t high = fold(load(hash + 16) ^ seed_[2], load(hash + 24) ^ seed_[3]);
    return fold(low ^ seed_[4], high ^ space ^ 0x9E3779B97F4A7C15U);
}

std::int64_t SlotTable::find(std::uint32_t space, const std::uint8_t* hash) const {
    return index_.find(hashed(space, hash), [&](std::uint32_t slot) { return slots_[slot].is(space, hash); });
}

// Three steps, each a few keys behind the one before it, so that the waits for memory overlap: hash a key and ask for its
// place in the index; read that and ask for the slot; compare.
std::vector<std::int64_t> SlotTable::find_ready(std::uint32_t space, const Items& chunk_hashes) const {
    const std::size_t count = chunk_hashes.size();
    std::vector<std::uint64_t> hashes(count);
    std::vector<std::int64_t> found(count);
    for (std::size_t step = 0; step < count + 2 * AHEAD; ++step) {
        if (step < count) {
            const std::uint8_t* hash = hash_of(chunk_hashes[step]);
            hashes[step] = hash ? hashed(space, hash) : 0;
            index_.prefetch(hashes[step]);
        }
        if (step >= AHEAD && step - AHEAD < count) {
            const std::int64_t candidate = index_.candidate(hashes[step - AHEAD]);
            if (candidate >= 0) __builtin_prefetch(&slots_[static_cast<std::size_t>(candidate)], 1);
        }
        if (step >= 2 * AHEAD) {
            const std::size_t at = step - 2 * AHEAD;
            const std::uint8_t* hash = hash_of(chunk_hashes[at]);
            const auto same = [&](std::uint32_t slot) { return slots_[slot].is(space, hash); };
            const std::int64_t slot = hash ? index_.find(hashes[at], same) : -1;
            found[at] = slot >= 0 && slots_[static_cast<std::size_t>(slot)].ready() ? slot : -1;
        }
    }
    return found;
}

void SlotTable::hold_all(const std::vector<std::int64_t>& found) {
    for (const std::int64_t number : found) {
        if (number >= 0 && slots_[static_cast<std::size_t>(number)].holds++ == 0) ++held_;
    }
}

nb::list SlotTable::acquire(std::uint32_t space, nb::handle chunk_hashes) {
    const std::vector<std::int64_t> found = find_ready(space, Items(chunk_hashes));
    nb::list made = list_of(found);
    hold_all(found);
    return made;
}

std::optional<nb::list> SlotTable::acquire_all(std::uint32_t space, nb::handle chunk_hashes) {
    const std::vector<std::int64_t> found = find_ready(space, Items(chunk_hashes));
    if (std::find(found.begin(), found.end(), -1) != found.end()) return std::nullopt;
    nb::list made = list_of(found);
    hold_all(found);
    return made;
}

bool SlotTable::contains(std::uint32_t space, nb::handle chunk_hash) const {
    const std::uint8_t* hash = hash_of(chunk_hash.ptr());
    const std::int64_t slot = hash ? find(space, hash) : -1;
    return slot >= 0 && slots_[static_cast<std::size_t>(slot)].ready();
}

std::uint32_t SlotTable::used(PyObject* value) const {
    const std::uint32_t number = slots_.known(value);
    if (!slots_[number].used()) throw nb::value_error("a slot is free that should be in use");
    return number;
}

void SlotTable::hold(nb::handle slots) {
    const Items items(slots);
    for (std::size_t at = 0; at < items.size(); ++at) {
        if (slots_[used(items[at])].holds++ == 0) ++held_;
    }
}

void SlotTable::release_one(std::uint32_t number, std::vector<std::uint32_t>& leaving) {
    Slot& slot = slots_[number];
    if (slot.holds == 0) throw nb::value_error("a slot is released that has no reference");
    if (--slot.holds == 0) {
        --held_;
        if (slot.flags != 0) leaving.push_back(number);
    }
}

nb::list SlotTable::release(nb::handle slots) {
    const Items items(slots);
    std::vector<std::uint32_t> leaving;
    for (std::size_t at = 0; at < items.size(); ++at) {
        if (at + AHEAD < items.size()) __builtin_prefetch(&slots_[slots_.known(items[at + AHEAD])], 1);
        release_one(slots_.known(items[at]), leaving);
    }
    return list_of(leaving);
}

nb::tuple SlotTable::release_from(nb::handle held, nb::handle slots) {
    const std::uint32_t mark = next_mark();
    const Items gone(slots), there(held);
    for (std::size_t at = 0; at < gone.size(); ++at) {
        const std::int64_t number = number_of(gone[at]);
        if (slots_.has(number)) slots_[static_cast<std::size_t>(number)].mark = mark;
    }
    nb::list kept;
    std::vector<std::uint32_t> leaving;
    for (std::size_t at = 0; at < there.size(); ++at) {
        const std::uint32_t number = slots_.known(there[at]);
        if (slots_[number].mark == mark) {
            release_one(number, leaving);
        } else {
            kept.append(nb::handle(there[at]));
        }
    }
    return nb::make_tuple(kept, list_of(leaving));
}

nb::list SlotTable::absent(std::uint32_t space, nb::handle chunk_hashes) {
    const Items items(chunk_hashes);
    std::vector<std::size_t> found;
    KeyIndex twice;
    for (std::size_t at = 0; at < items.size(); ++at) {
        const std::uint8_t* hash = hash_of(items[at]);
        if (hash == nullptr) throw nb::value_error("a chunk hash has 32 bytes");
        if (find(space, hash) >= 0) continue;
        const std::uint64_t mixed = hashed(space, hash);
        const auto same = [&](std::uint32_t index) {
            return std::memcmp(hash_of(items[index]), hash, HASH_BYTES) == 0;
        };
        if (twice.find(mixed, same) >= 0) continue;
        twice.add(mixed, static_cast<std::uint32_t>(at));
        found.push_back(at);
    }
    return list_of(found);
}

void SlotTable::begin(std::uint32_t space, nb::handle chunk_hashes, nb::handle slots) {
    const Items hashes(chunk_hashes), items(slots);
    if (hashes.size() != items.size()) throw nb::value_error("there are not as many slots as chunk hashes");
    if (space == FREE) throw nb::value_error("there is no such space");
    for (std::size_t at = 0; at < items.size(); ++at) {
        const std::uint32_t number = slots_.known(items[at]);
        const std::uint8_t* hash = hash_of(hashes[at]);
        if (hash == nullptr) throw nb::value_error("a chunk hash has 32 bytes");
        Slot& slot = slots_[number];
        if (slot.used()) throw nb::value_error("a slot is in use that should be free");
        std::memcpy(slot.hash, hash, HASH_BYTES);
        slot.space = space;
        slot.flags = WRITING;
        slot.holds = 1;
        index_.add(hashed(slot), number);
        ++used_;
        ++held_;
    }
}

void SlotTable::publish(nb::handle slots, std::uint32_t holds, bool temporary) {
    const Items items(slots);
    for (std::size_t at = 0; at < items.size(); ++at) {
        Slot& slot = slots_[used(items[at])];
        if (slot.flags != WRITING) throw nb::value_error("a slot is published that is not being written");
        slot.flags = temporary ? TEMPORARY : 0;
        slot.holds = holds;
        if (holds == 0) --held_;
        ++findable_;
    }
}

bool SlotTable::evictable_now(std::int64_t number) const {
    if (!slots_.has(number)) return false;
    const Slot& slot = slots_[static_cast<std::size_t>(number)];
    return slot.used() && slot.holds == 0 && slot.flags == 0;
}

bool SlotTable::may_evict(nb::handle slot) const { return evictable_now(number_of(slot.ptr())); }

nb::list SlotTable::evictable(nb::handle slots) {
    const std::uint32_t mark = next_mark();
    const Items items(slots);
    std::vector<std::int64_t> found;
    for (std::size_t at = 0; at < items.size(); ++at) {
        const std::int64_t number = number_of(items[at]);
        if (!evictable_now(number) || slots_[static_cast<std::size_t>(number)].mark == mark) continue;
        slots_[static_cast<std::size_t>(number)].mark = mark;
        found.push_back(number);
    }
    return list_of(found);
}

nb::list SlotTable::mark_temporary(nb::handle slots) {
    const Items items(slots);
    std::vector<std::uint32_t> idle;
    for (std::size_t at = 0; at < items.size(); ++at) {
        const std::uint32_t number = slots_.known(items[at]);
        Slot& slot = slots_[number];
        if (!slot.used() || slot.flags != 0) continue;
        slot.flags = TEMPORARY;
        if (slot.holds == 0) idle.push_back(number);
    }
    return list_of(idle);
}

void SlotTable::unlist(std::uint32_t number) {
    const Slot& slot = slots_[number];
    if (slot.flags & LEAVING) return;
    if (!(slot.flags & WRITING)) --findable_;
    index_.remove(hashed(slot), number);
}

void SlotTable::hide(nb::handle slots) {
    const Items items(slots);
    for (std::size_t at = 0; at < items.size(); ++at) {
        const std::uint32_t number = used(items[at]);
        unlist(number);
        slots_[number].flags = LEAVING;
    }
}

nb::dict SlotTable::remove(nb::handle slots) {
    const Items items(slots);
    std::vector<std::pair<std::uint32_t, std::size_t>> freed;
    for (std::size_t at = 0; at < items.size(); ++at) {
        const std::uint32_t number = used(items[at]);
        Slot& slot = slots_[number];
        unlist(number);
        const std::uint32_t space = slot.space;
        const auto counted = std::find_if(freed.rbegin(), freed.rend(), [&](auto& pair) { return pair.first == space; });
        if (counted == freed.rend()) {
            freed.emplace_back(space, 1);
        } else {
            ++counted->second;
        }
        --used_;
        if (slot.holds != 0) --held_;
        slot.holds = 0;
        slot.flags = 0;
        slot.space = FREE;
    }
    nb::dict counts;
    for (const auto& [space, count] : freed) counts[nb::int_(space)] = nb::int_(count);
    return counts;
}

nb::object SlotTable::state(nb::handle slot) const {
    const Slot& there = slots_[slots_.known(slot.ptr())];
    if (!there.used()) return nb::none();
    const bool temporary = (there.flags & TEMPORARY) != 0;
    return nb::make_tuple(there.space, bytes_of(there.hash, HASH_BYTES), there.holds, there.ready(), temporary);
}

nb::tuple SlotTable::key(nb::handle slot) const {
    const Slot& there = slots_[slots_.known(slot.ptr())];
    if (!there.used()) throw nb::key_error("the slot is free");
    return nb::make_tuple(there.space, bytes_of(there.hash, HASH_BYTES));
}

nb::tuple SlotTable::ready(std::int64_t begin, std::int64_t end) const {
    std::vector<std::int64_t> idle, busy;
    const std::int64_t last = std::min(end, static_cast<std::int64_t>(slots_.size()));
    for (std::int64_t number = std::max<std::int64_t>(0, begin); number < last; ++number) {
        const Slot& slot = slots_[static_cast<std::size_t>(number)];
        if (slot.ready()) (slot.holds == 0 ? idle : busy).push_back(number);
    }
    return nb::make_tuple(list_of(idle), list_of(busy));
}

// A number that no slot is marked with.
std::uint32_t SlotTable::next_mark() {
    if (++mark_ == 0) {
        for (std::size_t number = 0; number < slots_.size(); ++number) slots_[number].mark = 0;
        mark_ = 1;
    }
    return mark_;
}

void bind_slot_table(nb::module_& module) {
    nb::class_<SlotTable>(module, "SlotTable")
        .def(nb::init<>())
        .def_prop_ro("held", &SlotTable::held)
        .def_prop_ro("cached", &SlotTable::cached)
        .def_prop_ro("findable", &SlotTable::findable)
        .def("__len__", &SlotTable::size)
        .def("grow", &SlotTable::grow)
        .def("acquire", &SlotTable::acquire)
        .def("acquire_all", &SlotTable::acquire_all)
        .def("contains", &SlotTable::contains)
        .def("hold", &SlotTable::hold)
        .def("release", &SlotTable::release)
        .def("release_from", &SlotTable::release_from)
        .def("absent", &SlotTable::absent)
        .def("begin", &SlotTable::begin)
        .def("publish", &SlotTable::publish)
        .def("may_evict", &SlotTable::may_evict)
        .def("evictable", &SlotTable::evictable)
        .def("mark_temporary", &SlotTable::mark_temporary)
        .def("hide", &SlotTable::hide)
        .def("remove", &SlotTable::remove)
        .def("state", &SlotTable::state)
        .def("holds", &SlotTable::holds)
        .def("key", &SlotTable::key)
        .def("ready", &SlotTable::ready);
}

}  // namespace lmcache
