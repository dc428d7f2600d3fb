// Python lists of slots and hashes, read and made without a detour.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <stdexcept>
#include <vector>

namespace lmcache {

namespace nb = nanobind;

constexpr std::size_t HASH_BYTES = 32;

// The items of a list or tuple, or of a list made of another iterable.  Borrowed items stay valid as long as nothing else
// runs on the interpreter: do not call back into Python while looking at one.
class Items {
public:
    explicit Items(nb::handle values)
        : fast_(nb::steal(PySequence_Fast(values.ptr(), "expected a sequence"))) {
        if (!fast_.is_valid()) throw nb::python_error();
        size_ = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(fast_.ptr()));
        items_ = PySequence_Fast_ITEMS(fast_.ptr());
    }

    std::size_t size() const { return size_; }
    PyObject* operator[](std::size_t index) const { return items_[index]; }

private:
    nb::object fast_;
    std::size_t size_ = 0;
    PyObject** items_ = nullptr;
};

// The number, or -1 for an integer that names no slot.  Throws TypeError for anything but an integer.
inline std::int64_t number_of(PyObject* value) {
    if (!PyLong_Check(value)) throw nb::type_error("a slot is an integer");
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    return overflow != 0 || number < 0 || number > UINT32_MAX ? -1 : number;
}

// A 32-byte hash, or null for bytes of another length.  Throws TypeError for anything that is not bytes.
inline const std::uint8_t* hash_of(PyObject* value) {
    if (!PyBytes_Check(value)) throw nb::type_error("a chunk hash is bytes");
    const bool whole = static_cast<std::size_t>(PyBytes_GET_SIZE(value)) == HASH_BYTES;
    return whole ? reinterpret_cast<const std::uint8_t*>(PyBytes_AS_STRING(value)) : nullptr;
}

inline nb::bytes bytes_of(const std::uint8_t* data, std::size_t size) {
    return nb::bytes(reinterpret_cast<const char*>(data), size);
}

// A list of `numbers`.
template <typename Number> nb::list list_of(const std::vector<Number>& numbers) {
    nb::list made = nb::steal<nb::list>(PyList_New(static_cast<Py_ssize_t>(numbers.size())));
    if (!made.is_valid()) throw nb::python_error();
    for (std::size_t index = 0; index < numbers.size(); ++index) {
        PyObject* number = PyLong_FromLongLong(static_cast<long long>(numbers[index]));
        if (number == nullptr) throw nb::python_error();
        PyList_SET_ITEM(made.ptr(), static_cast<Py_ssize_t>(index), number);
    }
    return made;
}

}  // namespace lmcache
