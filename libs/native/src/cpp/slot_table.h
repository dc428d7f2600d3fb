// The compiled SlotTable: see lmcache_core/kernels/interfaces.py for what each method does.
#pragma once

#include <optional>

#include "key_index.h"
#include "slot_store.h"

namespace lmcache {

class SlotTable {
public:
    SlotTable();
    SlotTable(const SlotTable&) = delete;
    SlotTable& operator=(const SlotTable&) = delete;

    std::size_t held() const { return held_; }
    std::size_t cached() const { return used_ - held_; }
    std::size_t findable() const { return findable_; }
    std::size_t size() const { return slots_.size(); }
    void grow(std::size_t count) { slots_.grow(count); }

    nb::list acquire(std::uint32_t space, nb::handle chunk_hashes);
    std::optional<nb::list> acquire_all(std::uint32_t space, nb::handle chunk_hashes);
    bool contains(std::uint32_t space, nb::handle chunk_hash) const;
    void hold(nb::handle slots);
    nb::list release(nb::handle slots);
    nb::tuple release_from(nb::handle held, nb::handle slots);

    nb::list absent(std::uint32_t space, nb::handle chunk_hashes);
    void begin(std::uint32_t space, nb::handle chunk_hashes, nb::handle slots);
    void publish(nb::handle slots, std::uint32_t holds, bool temporary);

    bool may_evict(nb::handle slot) const;
    nb::list evictable(nb::handle slots);
    nb::list mark_temporary(nb::handle slots);
    void hide(nb::handle slots);
    nb::dict remove(nb::handle slots);

    nb::object state(nb::handle slot) const;
    std::uint32_t holds(nb::handle slot) const { return slots_[slots_.known(slot.ptr())].holds; }
    nb::tuple key(nb::handle slot) const;
    nb::tuple ready(std::int64_t begin, std::int64_t end) const;

private:
    std::uint64_t hashed(std::uint32_t space, const std::uint8_t* hash) const;
    std::uint64_t hashed(const Slot& slot) const { return hashed(slot.space, slot.hash); }
    std::int64_t find(std::uint32_t space, const std::uint8_t* hash) const;
    std::vector<std::int64_t> find_ready(std::uint32_t space, const Items& chunk_hashes) const;
    void hold_all(const std::vector<std::int64_t>& found);
    void release_one(std::uint32_t number, std::vector<std::uint32_t>& leaving);
    void unlist(std::uint32_t number);
    std::uint32_t used(PyObject* value) const;
    bool evictable_now(std::int64_t number) const;
    std::uint32_t next_mark();

    SlotStore slots_;
    KeyIndex index_;
    std::uint64_t seed_[5];
    std::uint32_t mark_ = 0;
    std::size_t used_ = 0;
    std::size_t held_ = 0;
    std::size_t findable_ = 0;
};

void bind_slot_table(nb::module_& module);

}  // namespace lmcache
