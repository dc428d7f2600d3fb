#include "transfer.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "fault_gate.h"
#include "operation_file.h"

namespace lmcache::io {

namespace {

constexpr std::uint64_t BOUNCE_BYTES = std::uint64_t{1} << 20;
// One system call moves no more than this; the kernel's own limit is a page below 2 GiB.
constexpr std::uint64_t CALL_BYTES = std::uint64_t{1} << 30;

constexpr std::uint64_t down(std::uint64_t at, std::uint64_t align) { return at & ~(align - 1); }
constexpr std::uint64_t up(std::uint64_t at, std::uint64_t align) { return down(at + align - 1, align); }

// May the call be made again?
bool again(int fd, int error) {
    if (error == EINTR) return true;
    if (error != EAGAIN) return false;
    pollfd ready = {.fd = fd, .events = POLLIN | POLLOUT, .revents = 0};
    ::poll(&ready, 1, 10);
    return true;
}

// What `call(done)` moves until it is all: 0, or -errno, `at_end` where it moves nothing more.
template <typename Call> int move_fully(int fd, std::uint64_t length, int at_end, Call call) {
    for (std::uint64_t done = 0; done < length;) {
        const ssize_t moved = call(done, std::min(length - done, CALL_BYTES));
        if (moved > 0) {
            done += static_cast<std::uint64_t>(moved);
        } else if (moved == 0) {
            return at_end;
        } else if (!again(fd, errno)) {
            return -errno;
        }
    }
    return 0;
}

}  // namespace

int read_fully(int fd, std::byte* memory, std::uint64_t length, std::uint64_t offset) {
    return move_fully(fd, length, -ENODATA, [=](std::uint64_t done, std::uint64_t most) {
        return ::pread(fd, memory + done, most, static_cast<off_t>(offset + done));
    });
}

int write_fully(int fd, const std::byte* memory, std::uint64_t length, std::uint64_t offset) {
    return move_fully(fd, length, -ENOSPC, [=](std::uint64_t done, std::uint64_t most) {
        return ::pwrite(fd, memory + done, most, static_cast<off_t>(offset + done));
    });
}

void Transfer::Free::operator()(std::byte* memory) const { std::free(memory); }

std::byte* Transfer::bounce() {
    if (!bounce_) {
        const std::uint64_t align = std::max<std::uint64_t>(operation_.align, sizeof(void*));
        bounce_.reset(static_cast<std::byte*>(std::aligned_alloc(align, up(BOUNCE_BYTES, align))));
    }
    bounced_ = true;
    return bounce_.get();
}

bool Transfer::aligned(std::uint64_t at) const {
    const auto address = reinterpret_cast<std::uintptr_t>(operation_.memory) + at;
    return ((address | (operation_.offset + at)) & (operation_.align - 1)) == 0;
}

int Transfer::read(Range range) {
    if (range.length() == 0) return 0;
    const int result = file_.direct() ? read_direct(range) : -EINVAL;
    if (result != -EINVAL) return result;
    // Another rule than `align`, or the end of a file that was none before: the page cache knows no rules.
    if (file_.direct()) {
        bounced_ = true;
        if (const int failed = file_.leave_direct(); failed != 0) return failed;
    }
    return read_fully(file_.fd(), operation_.memory + range.begin, range.length(), operation_.offset + range.begin);
}

int Transfer::read_direct(Range range) {
    const std::uint64_t whole = aligned(range.begin) ? down(range.length(), operation_.align) : 0;
    const int failed = read_fully(file_.fd(), operation_.memory + range.begin, whole, operation_.offset + range.begin);
    return failed != 0 ? failed : read_bounced({range.begin + whole, range.end});
}

int Transfer::read_bounced(Range range) {
    if (range.length() == 0) return 0;
    std::byte* const buffer = bounce();
    if (buffer == nullptr) return -ENOMEM;
    for (std::uint64_t at = range.begin; at < range.end;) {
        const std::uint64_t begin = down(operation_.offset + at, operation_.align);
        const std::uint64_t ahead = operation_.offset + at - begin;
        const std::uint64_t useful = std::min(range.end - at, up(BOUNCE_BYTES, operation_.align) - ahead);
        std::uint64_t come = 0;
        // A file may end in the middle of its last block: what is needed may have come all the same.
        while (come < ahead + useful) {
            const std::uint64_t most = up(ahead + useful, operation_.align) - come;
            const ssize_t moved = ::pread(file_.fd(), buffer + come, most, static_cast<off_t>(begin + come));
            if (moved == 0) return -ENODATA;
            if (moved < 0 && !again(file_.fd(), errno)) return -errno;
            come += moved > 0 ? static_cast<std::uint64_t>(moved) : 0;
        }
        std::byte* const to = operation_.memory + at;
        if (!guarded([=] { std::memcpy(to, buffer + ahead, useful); })) return -EFAULT;
        at += useful;
    }
    return 0;
}

int Transfer::write(Range range) {
    if (range.length() == 0) return 0;
    const int result = file_.direct() ? write_direct(range) : -EINVAL;
    if (result != -EINVAL) return result;
    if (file_.direct()) {
        bounced_ = true;
        if (const int failed = file_.leave_direct(); failed != 0) return failed;
    }
    return write_fully(file_.fd(), operation_.memory + range.begin, range.length(), operation_.offset + range.begin);
}

int Transfer::write_direct(Range range) {
    const std::uint64_t align = operation_.align, offset = operation_.offset;
    const std::uint64_t first = std::min(range.end, up(offset + range.begin, align) - offset);
    // Within one block there is no whole one, and its beginning lies before the operation's.
    const std::uint64_t last = std::max(offset + first, down(offset + range.end, align)) - offset;
    int failed = write_edge({range.begin, first});
    if (failed != 0) return failed;
    if (aligned(first)) {
        failed = write_fully(file_.fd(), operation_.memory + first, last - first, offset + first);
    } else {
        failed = write_bounced({first, last});
    }
    return failed != 0 ? failed : write_edge({last, range.end});
}

int Transfer::write_bounced(Range range) {
    if (range.length() == 0) return 0;
    std::byte* const buffer = bounce();
    if (buffer == nullptr) return -ENOMEM;
    for (std::uint64_t at = range.begin; at < range.end;) {
        const std::uint64_t length = std::min(range.end - at, up(BOUNCE_BYTES, operation_.align));
        const std::byte* const from = operation_.memory + at;
        if (!guarded([=] { std::memcpy(buffer, from, length); })) return -EFAULT;
        if (const int failed = write_fully(file_.fd(), buffer, length, operation_.offset + at); failed != 0) return failed;
        at += length;
    }
    return 0;
}

int Transfer::write_edge(Range range) {
    if (range.length() == 0) return 0;
    bounced_ = true;
    const int fd = file_.buffered_fd();
    if (fd < 0) return fd;
    return write_fully(fd, operation_.memory + range.begin, range.length(), operation_.offset + range.begin);
}

}  // namespace lmcache::io
