#include "ring.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <vector>

namespace lmcache::io {

namespace {

// Named here as well, for headers that are older than the kernel.
constexpr std::uint32_t SINGLE_ISSUER = 1U << 12;
constexpr std::uint32_t DEFER_TASKRUN = 1U << 13;
// A kernel that has not the last of them gets the plain set-up.
constexpr std::array<std::uint32_t, 2> SETUPS = {
    IORING_SETUP_CLAMP | IORING_SETUP_SUBMIT_ALL | SINGLE_ISSUER | DEFER_TASKRUN, IORING_SETUP_CLAMP};
constexpr std::uint32_t NEEDED_FEATURES = IORING_FEAT_SINGLE_MMAP | IORING_FEAT_NODROP | IORING_FEAT_SUBMIT_STABLE;
constexpr std::array<std::uint8_t, 4> NEEDED_REQUESTS = {IORING_OP_READ, IORING_OP_WRITE, IORING_OP_READ_FIXED,
                                                         IORING_OP_WRITE_FIXED};

int set_up(unsigned entries, io_uring_params& parameters) {
    for (const std::uint32_t flags : SETUPS) {
        parameters = {};
        parameters.flags = flags;
        const long fd = ::syscall(__NR_io_uring_setup, entries, &parameters);
        if (fd >= 0) return static_cast<int>(fd);
        if (errno != EINVAL) return -errno;
    }
    return -EINVAL;
}

int call_register(int fd, unsigned what, const void* argument, unsigned count) {
    const long result = ::syscall(__NR_io_uring_register, fd, what, argument, count);
    return result < 0 ? -errno : static_cast<int>(result);
}

bool has_requests(int fd) {
    constexpr unsigned COUNT = 256;
    std::vector<std::byte> memory(sizeof(io_uring_probe) + COUNT * sizeof(io_uring_probe_op));
    auto* probe = reinterpret_cast<io_uring_probe*>(memory.data());
    if (call_register(fd, IORING_REGISTER_PROBE, probe, COUNT) < 0) return false;
    return std::all_of(NEEDED_REQUESTS.begin(), NEEDED_REQUESTS.end(), [probe](std::uint8_t request) {
        return request <= probe->last_op && (probe->ops[request].flags & IO_URING_OP_SUPPORTED) != 0;
    });
}

bool make_table(int fd, unsigned what, unsigned count) {
    io_uring_rsrc_register table = {};
    table.nr = count;
    table.flags = IORING_RSRC_REGISTER_SPARSE;
    return call_register(fd, what, &table, sizeof table) >= 0;
}

bool set_place(int fd, unsigned what, unsigned place, const void* value) {
    io_uring_rsrc_update2 update = {};
    update.offset = place;
    update.data = reinterpret_cast<std::uintptr_t>(value);
    update.nr = 1;
    return call_register(fd, what, &update, sizeof update) == 1;
}

}  // namespace

bool Ring::works() {
    try {
        const Ring ring(4);
        return true;
    } catch (const std::system_error&) {
        return false;
    }
}

Ring::Ring(unsigned entries) {
    io_uring_params parameters = {};
    fd_ = set_up(entries, parameters);
    if (fd_ < 0) throw std::system_error(-fd_, std::generic_category(), "io_uring");
    try {
        if ((parameters.features & NEEDED_FEATURES) != NEEDED_FEATURES || !has_requests(fd_)) {
            throw std::system_error(ENOSYS, std::generic_category(), "io_uring of this kernel is too old");
        }
        map(parameters);
    } catch (...) {
        release();
        throw;
    }
}

Ring::~Ring() { release(); }

void Ring::map(const io_uring_params& parameters) {
    constexpr int PROTECTION = PROT_READ | PROT_WRITE, FLAGS = MAP_SHARED | MAP_POPULATE;
    rings_bytes_ = std::max<std::size_t>(parameters.sq_off.array + parameters.sq_entries * sizeof(std::uint32_t),
                                         parameters.cq_off.cqes + parameters.cq_entries * sizeof(io_uring_cqe));
    sqes_bytes_ = parameters.sq_entries * sizeof(io_uring_sqe);
    void* rings = ::mmap(nullptr, rings_bytes_, PROTECTION, FLAGS, fd_, static_cast<off_t>(IORING_OFF_SQ_RING));
    if (rings != MAP_FAILED) rings_ = rings;
    void* sqes = ::mmap(nullptr, sqes_bytes_, PROTECTION, FLAGS, fd_, static_cast<off_t>(IORING_OFF_SQES));
    if (sqes != MAP_FAILED) sqes_ = static_cast<io_uring_sqe*>(sqes);
    if (rings_ == nullptr || sqes_ == nullptr) throw std::system_error(errno, std::generic_category(), "io_uring");
    ::madvise(rings_, rings_bytes_, MADV_DONTFORK);
    ::madvise(sqes_, sqes_bytes_, MADV_DONTFORK);
    auto* base = static_cast<std::byte*>(rings_);
    const auto number = [base](std::uint32_t offset) { return reinterpret_cast<std::uint32_t*>(base + offset); };
    sq_tail_ = number(parameters.sq_off.tail);
    sq_array_ = number(parameters.sq_off.array);
    sq_mask_ = *number(parameters.sq_off.ring_mask);
    cq_head_ = number(parameters.cq_off.head);
    cq_tail_ = number(parameters.cq_off.tail);
    cq_mask_ = *number(parameters.cq_off.ring_mask);
    cqes_ = reinterpret_cast<io_uring_cqe*>(base + parameters.cq_off.cqes);
}

void Ring::release() {
    // A ring that is closed is taken down later, in the background; these are not to be held until then.
    call_register(fd_, IORING_UNREGISTER_BUFFERS, nullptr, 0);
    call_register(fd_, IORING_UNREGISTER_FILES, nullptr, 0);
    if (sqes_ != nullptr) ::munmap(sqes_, sqes_bytes_);
    if (rings_ != nullptr) ::munmap(rings_, rings_bytes_);
    ::close(fd_);
}

io_uring_sqe& Ring::prepare() {
    // The kernel looks at the tail only when it is entered, so the request may be filled in after this.
    const std::uint32_t tail = *sq_tail_, at = tail & sq_mask_;
    sq_array_[at] = at;
    sqes_[at] = {};
    __atomic_store_n(sq_tail_, tail + 1, __ATOMIC_RELEASE);
    ++prepared_;
    return sqes_[at];
}

int Ring::enter(unsigned completions) {
    for (;;) {
        const long taken = ::syscall(__NR_io_uring_enter, fd_, prepared_, completions, IORING_ENTER_GETEVENTS, nullptr, 0);
        if (taken < 0) return -errno;
        prepared_ -= std::min(prepared_, static_cast<unsigned>(taken));
        if (prepared_ == 0 || completions == 0) return 0;
    }
}

bool Ring::make_buffer_table(unsigned count) { return make_table(fd_, IORING_REGISTER_BUFFERS2, count); }

bool Ring::make_file_table(unsigned count) { return make_table(fd_, IORING_REGISTER_FILES2, count); }

bool Ring::set_buffer(unsigned place, std::byte* memory, std::uint64_t length) {
    const iovec value = {.iov_base = length == 0 ? nullptr : memory, .iov_len = length};
    return set_place(fd_, IORING_REGISTER_BUFFERS_UPDATE, place, &value);
}

bool Ring::set_file(unsigned place, int fd) {
    return set_place(fd_, IORING_REGISTER_FILES_UPDATE2, place, &fd);
}

}  // namespace lmcache::io
