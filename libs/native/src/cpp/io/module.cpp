#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <unistd.h>

#include <cmath>
#include <system_error>

#include "arguments.h"
#include "engine.h"
#include "fault_gate.h"

namespace nb = nanobind;

namespace lmcache::io {

namespace {

// What users of this module expect of it; it grows with every change of its interface.
constexpr int IO_ABI = 1;

constexpr std::int64_t WORKERS_LIMIT = 1024;
constexpr std::int64_t DEPTH_LIMIT = std::int64_t{1} << 20;

[[noreturn]] void raise_os_error(const std::system_error& error) {
    errno = error.code().value();
    PyErr_SetFromErrno(PyExc_OSError);
    throw nb::python_error();
}

void check(const char* name, std::int64_t number, std::int64_t most) {
    if (number >= 1 && number <= most) return;
    PyErr_Format(PyExc_ValueError, "%s must be from 1 to %lld, and is %lld", name, static_cast<long long>(most),
                 static_cast<long long>(number));
    throw nb::python_error();
}

std::chrono::steady_clock::time_point after(double seconds) {
    if (std::isnan(seconds) || seconds < 0) throw nb::value_error("seconds must be at least 0");
    constexpr double DECADE = 3e8;
    const std::chrono::duration<double> wait(std::min(seconds, DECADE));
    return std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::nanoseconds>(wait);
}

// An engine in the process that made it.  A child of a fork has its memory, but none of its threads.
class OwnedEngine {
public:
    OwnedEngine(const std::string& kind, std::int64_t workers, std::int64_t depth, std::int64_t bytes) : owner_(::getpid()) {
        if (kind != "auto" && kind != "threads" && kind != "io_uring") {
            throw nb::value_error("kind must be \"auto\", \"threads\" or \"io_uring\"");
        }
        check("workers", workers, WORKERS_LIMIT);
        check("queue_depth", depth, DEPTH_LIMIT);
        check("bytes_in_flight", bytes, INT64_MAX);
        const Limits limits{static_cast<std::uint64_t>(depth), static_cast<std::uint64_t>(bytes)};
        try {
            const nb::gil_scoped_release unlocked;
            const bool ring = kind == "io_uring" || (kind == "auto" && has_io_uring());
            engine_ = std::make_unique<Engine>(ring, static_cast<unsigned>(workers), limits);
        } catch (const std::system_error& error) {
            raise_os_error(error);
        }
    }
    OwnedEngine(const OwnedEngine&) = delete;
    OwnedEngine& operator=(const OwnedEngine&) = delete;

    ~OwnedEngine() {
        if (::getpid() != owner_) {
            static_cast<void>(engine_.release());  // its threads cannot be waited for here
            return;
        }
        const nb::gil_scoped_release unlocked;
        engine_.reset();
    }

    Engine& engine() const {
        if (::getpid() != owner_) throw std::runtime_error("this IoEngine belongs to the process that this one was forked from: make a new one");
        return *engine_;
    }

private:
    const pid_t owner_;
    std::unique_ptr<Engine> engine_;
};

void submit(const OwnedEngine& self, nb::handle operations) {
    Engine& engine = self.engine();
    std::vector<Operation> taken = operations_of(operations);
    bool open = false;
    {
        const nb::gil_scoped_release unlocked;
        open = engine.submit(std::move(taken));
    }
    if (!open) throw std::runtime_error("this IoEngine is closed");
}

nb::list answers(const OwnedEngine& self) {
    const std::vector<Answer> fetched = self.engine().fetch();
    nb::list made;
    for (const Answer& answer : fetched) {
        nb::object digest = nb::none();
        if (answer.digest) digest = nb::bytes(reinterpret_cast<const char*>(answer.digest->data()), answer.digest->size());
        made.append(nb::make_tuple(answer.token, answer.result, digest));
    }
    return made;
}

nb::dict counters(const OwnedEngine& self) {
    const Counters now = self.engine().counters();
    nb::dict made;
    made["operations"] = now.operations;
    made["bytes_read"] = now.bytes_read;
    made["bytes_written"] = now.bytes_written;
    made["bounced"] = now.bounced;
    made["errors"] = now.errors;
    made["in_flight"] = now.in_flight;
    made["waiting"] = now.waiting;
    made["registered_bytes"] = self.engine().registered_bytes();
    return made;
}

bool register_memory(const OwnedEngine& self, std::uint64_t address, std::uint64_t length) {
    if (address == 0 || length == 0 || address > UINTPTR_MAX - length || length > INT64_MAX) {
        throw nb::value_error("address and length must be memory");
    }
    Engine& engine = self.engine();
    const nb::gil_scoped_release unlocked;
    return engine.register_memory(reinterpret_cast<std::byte*>(address), length);
}

bool register_file(const OwnedEngine& self, int fd) {
    if (fd < 0) throw nb::value_error("fd must be an open file's");
    Engine& engine = self.engine();
    const nb::gil_scoped_release unlocked;
    return engine.register_file(fd);
}

bool close(const OwnedEngine& self, double seconds) {
    Engine& engine = self.engine();
    const auto deadline = after(seconds);
    const nb::gil_scoped_release unlocked;
    return engine.close(deadline);
}

void bind(nb::module_& module) {
    module.attr("IO_ABI") = IO_ABI;
    module.attr("READ") = static_cast<int>(Kind::read);
    module.attr("WRITE") = static_cast<int>(Kind::write);
    module.attr("READ_FILE") = static_cast<int>(Kind::read_file);
    module.attr("WRITE_FILE") = static_cast<int>(Kind::write_file);
    module.attr("COPY") = static_cast<int>(Kind::copy);
    module.attr("SYNC") = static_cast<int>(Kind::sync);
    nb::class_<OwnedEngine>(module, "IoEngine")
        .def(nb::init<const std::string&, std::int64_t, std::int64_t, std::int64_t>(), nb::arg("kind"), nb::arg("workers"),
             nb::arg("queue_depth"), nb::arg("bytes_in_flight"))
        .def_prop_ro("kind", [](const OwnedEngine& self) { return self.engine().kind(); })
        .def_static("has_io_uring", &has_io_uring, nb::call_guard<nb::gil_scoped_release>())
        .def("fileno", [](const OwnedEngine& self) { return self.engine().event_fd(); })
        .def("register_memory", &register_memory, nb::arg("address"), nb::arg("length"))
        .def("register_file", &register_file, nb::arg("fd"))
        .def("submit", &submit, nb::arg("operations"))
        .def("answers", &answers)
        .def("counters", &counters)
        .def("close", &close, nb::arg("seconds"));
}

}  // namespace

}  // namespace lmcache::io

NB_MODULE(_io, module) {
    nanobind::set_leak_warnings(false);  // a server may end with its engines still there
    const nb::object kernels = nb::module_::import_("lmcache_native._kernels");
    const nb::capsule guard = nb::cast<nb::capsule>(kernels.attr("_fault_guard"));
    lmcache::io::set_fault_guard(static_cast<const lmcache::io::FaultGuard*>(guard.data()));
    lmcache::io::bind(module);
}
