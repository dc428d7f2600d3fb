// The numbers and bytes of one fuzzer input, read from its front; where it has ended, zeros.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

class Input {
public:
    Input(const std::uint8_t* data, std::size_t size) : at_(data), left_(size) {}

    std::uint8_t byte() {
        if (left_ == 0) return 0;
        --left_;
        return *at_++;
    }
    std::uint64_t below(std::uint64_t limit) { return byte() % limit; }
    const std::uint8_t* rest() const { return at_; }
    std::size_t left() const { return left_; }

private:
    const std::uint8_t* at_;
    std::size_t left_;
};

// Ends the process, which is how a fuzzer learns of a fault.
inline void require(bool holds) {
    if (!holds) std::abort();
}
