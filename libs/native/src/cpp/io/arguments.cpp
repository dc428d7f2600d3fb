#include "arguments.h"

#include <climits>
#include <cstring>
#include <iterator>

namespace lmcache::io {

namespace nb = nanobind;

namespace {

constexpr std::int64_t ALIGN_LIMIT = std::int64_t{1} << 20;

struct Shape {
    const char* name;
    Py_ssize_t fields;
};

constexpr Shape SHAPES[] = {{"READ", 8}, {"WRITE", 9}, {"READ_FILE", 8}, {"WRITE_FILE", 8}, {"COPY", 7}, {"SYNC", 3}};

// The fields of one tuple, one after the other.
class Fields {
public:
    Fields(PyObject* operation, Py_ssize_t index) : operation_(operation), index_(index) {
        if (!PyTuple_Check(operation)) fail(PyExc_TypeError, "must be a tuple");
        if (PyTuple_GET_SIZE(operation) == 0) fail(PyExc_TypeError, "is empty");
        kind_ = static_cast<Kind>(number("kind", 0, static_cast<std::int64_t>(std::size(SHAPES)) - 1));
        shape_ = &SHAPES[static_cast<std::size_t>(kind_)];
        if (PyTuple_GET_SIZE(operation) != shape_->fields) fail(PyExc_TypeError, "has another number of fields than its kind");
    }

    Kind kind() const { return kind_; }

    std::int64_t number(const char* field, std::int64_t least, std::int64_t most) {
        PyObject* value = next();
        if (!PyLong_Check(value) || PyBool_Check(value)) fail(PyExc_TypeError, field, "must be an integer");
        int overflow = 0;
        const long long made = PyLong_AsLongLongAndOverflow(value, &overflow);
        if (overflow != 0 || made < least || made > most) {
            fail(PyExc_ValueError, field, ("must be from " + std::to_string(least) + " to " + std::to_string(most)).c_str());
        }
        return made;
    }

    std::uint64_t count(const char* field, std::int64_t most = INT64_MAX) {
        return static_cast<std::uint64_t>(number(field, 0, most));
    }

    std::byte* address(const char* field) {
        PyObject* value = next();
        if (!PyLong_Check(value) || PyBool_Check(value)) fail(PyExc_TypeError, field, "must be an integer");
        const unsigned long long made = PyLong_AsUnsignedLongLong(value);
        if (PyErr_Occurred() != nullptr) {
            PyErr_Clear();
            fail(PyExc_ValueError, field, "is not an address");
        }
        return reinterpret_cast<std::byte*>(made);
    }

    std::string path(const char* field) {
        PyObject* value = next();
        if (!PyBytes_Check(value)) fail(PyExc_TypeError, field, "must be bytes");
        const auto size = static_cast<std::size_t>(PyBytes_GET_SIZE(value));
        std::string made(PyBytes_AS_STRING(value), size);
        if (made.empty() || made.find('\0') != std::string::npos) {
            fail(PyExc_ValueError, field, "must be a path: neither empty, nor with a zero byte in it");
        }
        return made;
    }

    [[noreturn]] void fail(PyObject* error, const char* field, const char* why) const {
        PyErr_Format(error, "operation %zd (%s): %s %s", index_, shape_ == nullptr ? "of no known kind" : shape_->name, field, why);
        throw nb::python_error();
    }

private:
    [[noreturn]] void fail(PyObject* error, const char* why) const {
        PyErr_Format(error, "operation %zd %s", index_, why);
        throw nb::python_error();
    }

    PyObject* next() { return PyTuple_GET_ITEM(operation_, at_++); }

    PyObject* operation_;
    Py_ssize_t index_;
    Py_ssize_t at_ = 0;
    Kind kind_ = Kind::sync;
    const Shape* shape_ = nullptr;
};

void take_memory(Fields& fields, Operation& operation) {
    operation.memory = fields.address("address");
    operation.length = fields.count("length");
}

void take_align(Fields& fields, Operation& operation) {
    operation.align = fields.count("align", ALIGN_LIMIT);
    if ((operation.align & (operation.align - 1)) != 0) fields.fail(PyExc_ValueError, "align", "must be 0 or a power of two");
}

void take_head(Fields& fields, Operation& operation) {
    operation.head_bytes = fields.count("head_bytes");
    if (operation.head_bytes > operation.length) fields.fail(PyExc_ValueError, "head_bytes", "must not be more than length");
}

void take_digest(Fields& fields, Operation& operation) {
    const std::int64_t from = fields.number("digest_from", -1, INT64_MAX);
    if (from > static_cast<std::int64_t>(operation.length)) {
        fields.fail(PyExc_ValueError, "digest_from", "must be -1, or not be more than length");
    }
    if (from >= 0) operation.digest_from = static_cast<std::uint64_t>(from);
}

void take_sync(Fields& fields, Operation& operation) {
    operation.durability = static_cast<Durability>(fields.number("sync", 0, 2));
}

void check_extent(const Fields& fields, const Operation& operation) {
    const std::byte* source = operation.kind == Kind::copy ? operation.source : operation.memory;
    for (const std::byte* memory : {static_cast<const std::byte*>(operation.memory), source}) {
        const auto address = reinterpret_cast<std::uintptr_t>(memory);
        if (operation.length > 0 && (address == 0 || address > UINTPTR_MAX - operation.length)) {
            fields.fail(PyExc_ValueError, "address", "and length run over the end of the address space");
        }
    }
    if (operation.offset > static_cast<std::uint64_t>(INT64_MAX) - operation.length) {
        fields.fail(PyExc_ValueError, "offset", "and length must end before 2**63");
    }
}

Operation operation_of(PyObject* tuple, Py_ssize_t index) {
    Fields fields(tuple, index);
    Operation operation;
    operation.kind = fields.kind();
    operation.token = fields.number("token", INT64_MIN, INT64_MAX);
    switch (operation.kind) {
        case Kind::read:
        case Kind::write:
            operation.fd = static_cast<int>(fields.number("fd", 0, INT_MAX));
            operation.offset = fields.count("offset");
            take_memory(fields, operation);
            take_align(fields, operation);
            if (operation.kind == Kind::read) {
                take_digest(fields, operation);
            } else {
                take_head(fields, operation);
                take_sync(fields, operation);
            }
            break;
        case Kind::read_file:
            operation.path = fields.path("path");
            take_memory(fields, operation);
            take_align(fields, operation);
            take_digest(fields, operation);
            operation.read_ahead_bytes = fields.count("read_ahead_bytes");
            break;
        case Kind::write_file:
            operation.temporary = fields.path("temporary");
            operation.path = fields.path("path");
            take_memory(fields, operation);
            take_align(fields, operation);
            take_sync(fields, operation);
            break;
        case Kind::copy:
            operation.source = fields.address("source");
            take_memory(fields, operation);
            take_head(fields, operation);
            take_digest(fields, operation);
            break;
        case Kind::sync: operation.fd = static_cast<int>(fields.number("fd", 0, INT_MAX)); break;
    }
    check_extent(fields, operation);
    return operation;
}

}  // namespace

std::vector<Operation> operations_of(nb::handle sequence) {
    const nb::object fast = nb::steal(PySequence_Fast(sequence.ptr(), "operations must be a sequence"));
    if (!fast.is_valid()) throw nb::python_error();
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(fast.ptr());
    std::vector<Operation> made;
    made.reserve(static_cast<std::size_t>(count));
    for (Py_ssize_t index = 0; index < count; ++index) {
        made.push_back(operation_of(PySequence_Fast_GET_ITEM(fast.ptr(), index), index));
    }
    return made;
}

}  // namespace lmcache::io
