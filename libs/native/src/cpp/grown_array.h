// An array that grows without copying: the system moves whole pages where the array is large.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <new>
#include <type_traits>

namespace lmcache {

template <typename Value> class GrownArray {
    static_assert(std::is_trivially_copyable_v<Value>);

public:
    GrownArray() = default;
    GrownArray(const GrownArray&) = delete;
    GrownArray& operator=(const GrownArray&) = delete;
    ~GrownArray() { std::free(data_); }

    std::size_t size() const { return size_; }
    Value& operator[](std::size_t at) { return data_[at]; }
    const Value& operator[](std::size_t at) const { return data_[at]; }

    // New items have this value.  Shrinking releases no memory.
    void resize(std::size_t size, Value value) {
        if (size > capacity_) {
            const std::size_t larger = std::max(size, capacity_ + capacity_ / 2);
            void* moved = std::realloc(data_, larger * sizeof(Value));
            if (moved == nullptr) throw std::bad_alloc();
            data_ = static_cast<Value*>(moved);
            capacity_ = larger;
        }
        if (size > size_) std::fill(data_ + size_, data_ + size, value);
        size_ = size;
    }

private:
    Value* data_ = nullptr;
    std::size_t size_ = 0;
    std::size_t capacity_ = 0;
};

}  // namespace lmcache
