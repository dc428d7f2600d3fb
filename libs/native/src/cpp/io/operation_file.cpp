#include "operation_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace lmcache::io {

namespace {

// Whatever has the name of the file must not make us wait (a pipe), lead elsewhere (a link) or become our terminal.
constexpr int CAREFULLY = O_CLOEXEC | O_NOFOLLOW | O_NOCTTY;
constexpr mode_t OWNER_ONLY = 0600;

struct Opened {
    int fd;
    bool direct;
};

// A file system that has no O_DIRECT gets us a plain descriptor.
Opened open_either(const std::string& path, int flags, bool direct) {
    for (;;) {
        const int fd = ::open(path.c_str(), flags | CAREFULLY | (direct ? O_DIRECT : 0), OWNER_ONLY);
        if (fd >= 0) return {fd, direct};
        if (errno == EINTR) continue;
        if (errno != EINVAL || !direct) return {-errno, direct};
        direct = false;
    }
}

int sync_folder_of(const std::string& path) {
    const std::size_t slash = path.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
    const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return -errno;
    const int result = ::fsync(fd) == 0 ? 0 : -errno;
    ::close(fd);
    return result;
}

}  // namespace

OperationFile::~OperationFile() { close(); }

void OperationFile::close() {
    for (int* fd : {&own_fd_, &buffered_fd_}) {
        if (*fd >= 0) ::close(*fd);
        *fd = -1;
    }
    fd_ = -1;
}

int OperationFile::open(const Operation& operation) {
    switch (operation.kind) {
        case Kind::read_file: return open_to_read(operation);
        case Kind::write_file: return open_to_write(operation);
        default:
            fd_ = operation.fd;
            direct_ = operation.align != 0;
            // A pipe or socket has no offsets, and could keep us waiting for ever.
            return ::lseek(fd_, 0, SEEK_CUR) >= 0 ? 0 : -errno;
    }
}

int OperationFile::open_to_read(const Operation& operation) {
    const Opened opened = open_either(operation.path, O_RDONLY | O_NONBLOCK, operation.align != 0);
    if (opened.fd == -ENXIO || opened.fd == -ENODEV) return -ELOOP;  // a socket, or a device without a driver
    if (opened.fd < 0) return opened.fd;
    own_fd_ = fd_ = opened.fd;
    direct_ = opened.direct;
    struct stat status = {};
    int refused = 0;
    if (::fstat(fd_, &status) != 0) {
        refused = -errno;
    } else if (!S_ISREG(status.st_mode)) {
        refused = -ELOOP;
    } else if (static_cast<std::uint64_t>(status.st_size) != operation.length) {
        refused = -ENODATA;
    }
    // It was for pipes; io_uring would take it to mean files, too.
    if (refused == 0 && ::fcntl(fd_, F_SETFL, direct_ ? O_DIRECT : 0) != 0) refused = -errno;
    if (refused != 0) {
        close();
    } else if (!direct_ && operation.read_ahead_bytes > 0) {
        ::posix_fadvise(fd_, 0, static_cast<off_t>(operation.read_ahead_bytes), POSIX_FADV_WILLNEED);
    }
    return refused;
}

int OperationFile::open_to_write(const Operation& operation) {
    // Without O_DIRECT at first: a file system that has none makes the file, and only then refuses to open it.
    const Opened opened = open_either(operation.temporary, O_WRONLY | O_CREAT | O_EXCL, false);
    if (opened.fd < 0) return opened.fd;
    own_fd_ = fd_ = opened.fd;
    made_temporary_ = true;
    direct_ = operation.align != 0 && ::fcntl(fd_, F_SETFL, O_DIRECT) == 0;
    // With its final size, a file's parts may be written side by side; and a full disk says so at once.
    if (direct_ && operation.length > 0 && ::fallocate(fd_, 0, 0, static_cast<off_t>(operation.length)) != 0 &&
        errno == ENOSPC) {
        return static_cast<int>(conclude(operation, -ENOSPC));
    }
    return 0;
}

int OperationFile::buffered_fd() {
    if (buffered_fd_ >= 0) return buffered_fd_;
    const int flags = ::fcntl(fd_, F_GETFL);
    if (flags < 0) return -errno;
    char name[32];
    std::snprintf(name, sizeof name, "/proc/self/fd/%d", fd_);
    const int fd = ::open(name, (flags & O_ACCMODE) | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) return -errno;
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);  // only what is asked for, and nothing ahead
    return buffered_fd_ = fd;
}

int OperationFile::leave_direct() {
    const int fd = buffered_fd();
    if (fd < 0) return fd;
    fd_ = fd;
    direct_ = false;
    return 0;
}

int OperationFile::sync() const { return ::fdatasync(fd_) == 0 ? 0 : -errno; }

int OperationFile::publish(const Operation& operation) const {
    if (::link(operation.temporary.c_str(), operation.path.c_str()) != 0) return -errno;
    if (operation.durability == Durability::none) return 0;
    const int failed = sync_folder_of(operation.path);
    if (failed != 0) ::unlink(operation.path.c_str());  // what is answered as failed must not turn up later
    return failed;
}

std::int64_t OperationFile::conclude(const Operation& operation, std::int64_t result) {
    int failed = 0;
    if (result >= 0 && operation.writes() && operation.durability != Durability::none) failed = sync();
    if (operation.kind == Kind::write_file && made_temporary_) {
        if (result >= 0 && failed == 0) failed = publish(operation);
        ::unlink(operation.temporary.c_str());
        made_temporary_ = false;
    }
    close();
    return failed != 0 && result >= 0 ? failed : result;
}

}  // namespace lmcache::io
