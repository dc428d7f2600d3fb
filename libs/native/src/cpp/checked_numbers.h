// Numbers of a caller, before they become addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace lmcache {

// What Python's integers, and pointer arithmetic, can hold.
inline constexpr std::uint64_t BYTES_LIMIT = INT64_MAX;

[[noreturn]] inline void refuse(const std::string& why) { throw std::invalid_argument(why); }

inline std::string text(std::uint64_t number) { return std::to_string(number); }

// Numbers that must stay within BYTES_LIMIT, or the call is refused.
inline std::uint64_t times(std::uint64_t left, std::uint64_t right, const char* what) {
    std::uint64_t product = 0;
    if (__builtin_mul_overflow(left, right, &product) || product > BYTES_LIMIT) refuse(std::string(what) + " is too large: the limit is 2**63 bytes");
    return product;
}

inline std::uint64_t plus(std::uint64_t left, std::uint64_t right, const char* what) {
    std::uint64_t sum = 0;
    if (__builtin_add_overflow(left, right, &sum) || sum > BYTES_LIMIT) refuse(std::string(what) + " is too large: the limit is 2**63 bytes");
    return sum;
}

// That memory of this extent from each address on does not run over the end of the address space.
inline void check_addresses(const std::vector<std::uint64_t>& addresses, std::uint64_t extent, const std::string& name) {
    for (std::size_t index = 0; index < addresses.size(); ++index) {
        const std::string which = name + "[" + text(index) + "]";
        if (addresses[index] == 0) refuse(which + " is 0, which is not an address");
        if (addresses[index] > UINT64_MAX - extent) refuse(which + " and the " + text(extent) + " bytes behind it run over the end of the address space");
    }
}

inline std::byte* at(std::uint64_t address) { return reinterpret_cast<std::byte*>(address); }

}  // namespace lmcache
