#include "recency.h"

#include <algorithm>

namespace lmcache {

namespace {

constexpr std::uint32_t NOWHERE = UINT32_MAX;
constexpr std::size_t DEAD_SHARE = 3;
constexpr std::size_t SLACK = 1024;
constexpr std::size_t SWEPT_PER_TOUCH = 4;

}  // namespace

bool Recency::known(std::int64_t slot) const {
    return slot >= 0 && static_cast<std::size_t>(slot) < group_.size() && group_[static_cast<std::size_t>(slot)] != 0;
}

void Recency::insert(nb::handle slots, std::uint32_t group) {
    if (group == 0 || group > UINT16_MAX) throw nb::value_error("a class is a number from 1 to 65535");
    const Items items(slots);
    std::vector<std::uint32_t> newest_last(items.size());
    std::size_t largest = 0;
    for (std::size_t at = 0; at < items.size(); ++at) {
        const std::int64_t slot = number_of(items[at]);
        if (slot < 0 || slot == NOWHERE) throw nb::value_error("there is no such slot");
        newest_last[items.size() - 1 - at] = static_cast<std::uint32_t>(slot);
        largest = std::max(largest, static_cast<std::size_t>(slot));
    }
    if (newest_last.empty()) return;
    make_room(largest + 1);
    if (group >= first_.size()) first_.resize(group + 1, 0);
    for (const std::uint32_t slot : newest_last) {
        if (group_[slot] == 0) ++known_;
        group_[slot] = static_cast<std::uint16_t>(group);
    }
    append(newest_last);
}

void Recency::touch(nb::handle slots) {
    const Items items(slots);
    std::vector<std::uint32_t> newest_last;
    newest_last.reserve(items.size());
    for (std::size_t at = items.size(); at-- > 0;) {
        const std::int64_t slot = number_of(items[at]);
        if (known(slot)) newest_last.push_back(static_cast<std::uint32_t>(slot));
    }
    append(newest_last);
}

void Recency::remove(nb::handle slots) {
    const Items items(slots);
    for (std::size_t at = 0; at < items.size(); ++at) {
        const std::int64_t number = number_of(items[at]);
        if (!known(number)) continue;
        const std::size_t slot = static_cast<std::size_t>(number);
        group_[slot] = 0;
        place_[slot] = NOWHERE;
        --known_;
    }
}

std::uint32_t Recency::group(nb::handle slot) const {
    const std::int64_t number = number_of(slot.ptr());
    return known(number) ? group_[static_cast<std::size_t>(number)] : 0;
}

nb::tuple Recency::scan(std::uint32_t group, std::int64_t position, std::int64_t steps) {
    if (position < 0 || steps < 1) throw nb::value_error("position must not be negative, and steps be at least 1");
    if (group >= first_.size()) return nb::make_tuple(nb::list(), -1);
    const std::size_t first = first_[group];
    std::size_t begin = std::max(static_cast<std::size_t>(position), first);
    if (packed_ <= begin && begin < swept_) begin = swept_;
    const std::size_t limit = begin < packed_ ? packed_ : log_.size();
    const std::size_t end = std::min(begin + static_cast<std::size_t>(steps), limit);
    std::vector<std::uint32_t> found;
    for (std::size_t place = begin; place < end; ++place) {
        const std::uint32_t slot = log_[place];
        if (place_[slot] == place && (group == 0 || group_[slot] == group)) found.push_back(slot);
    }
    if (static_cast<std::size_t>(position) <= first) first_[group] = found.empty() ? end : place_[found.front()];
    return nb::make_tuple(list_of(found), end < log_.size() ? static_cast<std::int64_t>(end) : -1);
}

void Recency::append(const std::vector<std::uint32_t>& newest_last) {
    std::size_t place = log_.size();
    log_.resize(place + newest_last.size(), 0);
    for (const std::uint32_t slot : newest_last) {
        log_[place] = slot;
        place_[slot] = static_cast<std::uint32_t>(place++);
    }
    if (swept_ != 0 || log_.size() > DEAD_SHARE * known_ + SLACK) sweep(SWEPT_PER_TOUCH * newest_last.size() + 1);
}

// Look at `steps` more entries of the log and move the live ones to its front.
void Recency::sweep(std::size_t steps) {
    const std::size_t end = std::min(swept_ + steps, log_.size());
    for (std::size_t place = swept_; place < end; ++place) {
        const std::uint32_t slot = log_[place];
        if (place_[slot] != place) continue;
        first_[0] = std::min(first_[0], packed_);
        first_[group_[slot]] = std::min(first_[group_[slot]], packed_);
        log_[packed_] = slot;
        place_[slot] = static_cast<std::uint32_t>(packed_++);
    }
    swept_ = end;
    if (end == log_.size()) {
        log_.resize(packed_, 0);
        for (std::size_t& first : first_) first = std::min(first, log_.size());
        packed_ = swept_ = 0;
    }
}

void Recency::make_room(std::size_t count) {
    if (count <= group_.size()) return;
    const std::size_t larger = std::max(count, 2 * group_.size());
    group_.resize(larger, 0);
    place_.resize(larger, NOWHERE);
}

void bind_recency(nb::module_& module) {
    nb::class_<Recency>(module, "Recency")
        .def(nb::init<>())
        .def("insert", &Recency::insert)
        .def("touch", &Recency::touch)
        .def("remove", &Recency::remove)
        .def("group", &Recency::group)
        .def("scan", &Recency::scan);
}

}  // namespace lmcache
