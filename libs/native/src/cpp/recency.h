// The compiled Recency: see lmcache_core/kernels/interfaces.py for what each method does, and recency.py beside it for how
// the log works.
#pragma once

#include <vector>

#include "grown_array.h"
#include "python_values.h"

namespace lmcache {

class Recency {
public:
    Recency() = default;
    Recency(const Recency&) = delete;
    Recency& operator=(const Recency&) = delete;

    void insert(nb::handle slots, std::uint32_t group);
    void touch(nb::handle slots);
    void remove(nb::handle slots);
    std::uint32_t group(nb::handle slot) const;
    nb::tuple scan(std::uint32_t group, std::int64_t position, std::int64_t steps);

private:
    bool known(std::int64_t slot) const;
    void append(const std::vector<std::uint32_t>& newest_last);
    void sweep(std::size_t steps);
    void make_room(std::size_t count);

    GrownArray<std::uint32_t> log_;
    GrownArray<std::uint32_t> place_;
    GrownArray<std::uint16_t> group_;
    std::size_t known_ = 0;
    std::size_t packed_ = 0;
    std::size_t swept_ = 0;
    std::vector<std::size_t> first_{0};  // by class, 0 for all: nothing lives before this place
};

void bind_recency(nb::module_& module);

}  // namespace lmcache
