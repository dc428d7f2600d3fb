// Python's buffers of numbers and its integers, as arguments that are refused by name.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

namespace lmcache {

namespace nb = nanobind;

[[noreturn]] inline void refuse_argument(const std::string& why) { throw nb::value_error(why.c_str()); }

// A copy of a contiguous buffer of int64, uint64, uint32 or float32: other threads may change the original while the GIL is released.
template <typename Number> std::vector<Number> numbers_of(nb::handle object, const std::string& name) {
    constexpr bool real = std::is_floating_point_v<Number>;
    Py_buffer buffer;
    if (PyObject_GetBuffer(object.ptr(), &buffer, PyBUF_FULL_RO) != 0) throw nb::python_error();
    std::string format = buffer.format == nullptr ? "B" : buffer.format;
    if (format.size() == 2 && std::strchr("@=<", format[0]) != nullptr) format.erase(0, 1);
    constexpr bool narrow = sizeof(Number) == 4;
    const char* formats = real ? "f" : narrow ? "I" : std::is_signed_v<Number> ? "ql" : "QL";
    const bool fits = format.size() == 1 && std::strchr(formats, format[0]) != nullptr &&
                      buffer.itemsize == sizeof(Number) && buffer.ndim == 1 && PyBuffer_IsContiguous(&buffer, 'C');
    std::vector<Number> numbers;
    if (fits) {
        numbers.resize(static_cast<std::size_t>(buffer.len) / sizeof(Number));
        if (!numbers.empty()) std::memcpy(numbers.data(), buffer.buf, numbers.size() * sizeof(Number));
    }
    PyBuffer_Release(&buffer);
    if (!fits) refuse_argument(name + " must be one contiguous row of " + (real ? "float32" : narrow ? "uint32" : std::is_signed_v<Number> ? "int64" : "uint64"));
    return numbers;
}

inline std::uint64_t at_least(std::int64_t least, std::int64_t number, const char* name) {
    if (number < least) refuse_argument(std::string(name) + " must be at least " + std::to_string(least) + ", and is " + std::to_string(number));
    return static_cast<std::uint64_t>(number);
}

}  // namespace lmcache
