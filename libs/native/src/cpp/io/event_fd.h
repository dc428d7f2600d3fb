// An eventfd that is closed with its owner.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace lmcache::io {

class EventFd {
public:
    // Throws std::system_error.
    explicit EventFd(int flags) : fd_(::eventfd(0, flags | EFD_CLOEXEC)) {
        if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
    }
    EventFd(const EventFd&) = delete;
    EventFd& operator=(const EventFd&) = delete;
    ~EventFd() { ::close(fd_); }

    int number() const { return fd_; }

private:
    const int fd_;
};

}  // namespace lmcache::io
