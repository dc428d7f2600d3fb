#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <string>

#include "directory.h"

namespace nb = nanobind;

namespace lmcache::fleet {

namespace {

// What lmcache-fleet expects of this module.
constexpr int FLEET_ABI = 1;

// A readable buffer of bytes, kept while the interpreter is released.  What it has may change meanwhile: that changes which keys
// are meant, and nothing else.
class Bytes {
public:
    explicit Bytes(nb::handle object) {
        if (PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_SIMPLE) != 0) throw nb::python_error();
    }
    Bytes(const Bytes&) = delete;
    Bytes& operator=(const Bytes&) = delete;
    ~Bytes() { PyBuffer_Release(&buffer_); }

    const std::uint8_t* data() const { return static_cast<const std::uint8_t*>(buffer_.buf); }
    std::size_t size() const { return static_cast<std::size_t>(buffer_.len); }

private:
    Py_buffer buffer_;
};

Hashes hashes_of(const Bytes& bytes) {
    if (bytes.size() % HASH_BYTES != 0) {
        throw nb::value_error(("hashes have 32 bytes each, and " + std::to_string(bytes.size()) + " is not a multiple").c_str());
    }
    return {bytes.data(), bytes.size() / HASH_BYTES};
}

Owner owner_of(std::int64_t number) {
    if (number < 1 || number >= static_cast<std::int64_t>(OWNERS)) throw nb::value_error("an owner is a number from 1 to 65535");
    return static_cast<Owner>(number);
}

template <typename Number> nb::bytes packed(const std::vector<Number>& numbers) {
    return nb::bytes(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number));
}

void set_state(Directory& directory, std::int64_t owner, std::int64_t state) {
    if (state < 0 || state > 2) throw nb::value_error("a state is DEAD (0), HIDDEN (1) or VISIBLE (2)");
    directory.set_state(owner_of(owner), static_cast<OwnerState>(state));
}

std::size_t add(Directory& directory, std::uint64_t space, nb::handle hashes, std::int64_t owner) {
    const Bytes bytes(hashes);
    const Hashes keys = hashes_of(bytes);
    const Owner number = owner_of(owner);
    const nb::gil_scoped_release released;
    return directory.add(space, keys, number);
}

std::size_t remove(Directory& directory, std::uint64_t space, nb::handle hashes, std::int64_t owner) {
    const Bytes bytes(hashes);
    const Hashes keys = hashes_of(bytes);
    const Owner number = owner_of(owner);
    const nb::gil_scoped_release released;
    return directory.remove(space, keys, number);
}

nb::tuple find(const Directory& directory, std::uint64_t space, nb::handle hashes) {
    const Bytes bytes(hashes);
    const Hashes keys = hashes_of(bytes);
    std::vector<std::uint32_t> ends;
    std::vector<Owner> owners;
    {
        const nb::gil_scoped_release released;
        directory.find(space, keys, ends, owners);
    }
    return nb::make_tuple(packed(ends), packed(owners));
}

std::vector<std::pair<std::uint16_t, std::uint32_t>> prefixes(const Directory& directory, std::uint64_t space,
                                                              nb::handle hashes, nb::handle groups) {
    const Bytes bytes(hashes);
    const Hashes keys = hashes_of(bytes);
    const Bytes of_owners(groups);
    if (of_owners.size() != OWNERS * sizeof(std::uint16_t)) throw nb::value_error("groups are 65536 numbers of 16 bits");
    const auto* numbers = reinterpret_cast<const std::uint16_t*>(of_owners.data());
    const nb::gil_scoped_release released;
    return directory.prefixes(space, keys, numbers);
}

std::uint64_t sweep(Directory& directory, std::int64_t lines) {
    if (lines < 1) throw nb::value_error("lines must be at least 1");
    const nb::gil_scoped_release released;
    return directory.sweep(static_cast<std::size_t>(lines));
}

NB_MODULE(_fleet, module) {
    nb::set_leak_warnings(false);
    module.attr("FLEET_ABI") = FLEET_ABI;
    nb::class_<Directory>(module, "Directory")
        .def(nb::init<std::uint64_t>(), nb::arg("secret"))
        .def("set_state", &set_state, nb::arg("owner"), nb::arg("state"))
        .def("add", &add, nb::arg("space"), nb::arg("hashes"), nb::arg("owner"))
        .def("remove", &remove, nb::arg("space"), nb::arg("hashes"), nb::arg("owner"))
        .def("find", &find, nb::arg("space"), nb::arg("hashes"))
        .def("prefixes", &prefixes, nb::arg("space"), nb::arg("hashes"), nb::arg("groups"))
        .def("sweep", &sweep, nb::arg("lines"))
        .def("count", [](const Directory& directory, std::int64_t owner) { return directory.count(owner_of(owner)); })
        .def("size_bytes", [](const Directory& directory) {
            const nb::gil_scoped_release released;
            return directory.bytes();
        });
}

}  // namespace

}  // namespace lmcache::fleet
