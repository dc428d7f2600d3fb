// One io_uring of the kernel, by raw system calls.
#pragma once

#include <linux/io_uring.h>

#include <cstddef>
#include <cstdint>

namespace lmcache::io {

// All of it belongs to the thread that made it.
class Ring {
public:
    // With space for `entries` requests at a time.  Throws std::system_error.
    explicit Ring(unsigned entries);
    Ring(const Ring&) = delete;
    Ring& operator=(const Ring&) = delete;
    ~Ring();

    // Whether this kernel has what is used here, and permits it.
    static bool works();

    // The next request, all zero; it goes to the kernel with the next `enter`.  No more than `entries` at a time.
    io_uring_sqe& prepare();
    // Hands over what was prepared and waits for `completions` of them: one system call.  0, or -errno.
    int enter(unsigned completions);

    // Calls `take(user_data, result)` for what has completed.
    template <typename Take> void reap(Take take) {
        std::uint32_t head = *cq_head_;
        while (head != __atomic_load_n(cq_tail_, __ATOMIC_ACQUIRE)) {
            const io_uring_cqe cqe = cqes_[head & cq_mask_];
            __atomic_store_n(cq_head_, ++head, __ATOMIC_RELEASE);
            take(cqe.user_data, cqe.res);
        }
    }

    // Tables of `count` places, all empty at first.  False where the kernel refuses.
    bool make_buffer_table(unsigned count);
    bool make_file_table(unsigned count);
    // Length 0 and fd -1 empty the place.
    bool set_buffer(unsigned place, std::byte* memory, std::uint64_t length);
    bool set_file(unsigned place, int fd);

private:
    void map(const struct io_uring_params& parameters);
    void release();

    int fd_ = -1;
    unsigned prepared_ = 0;
    void* rings_ = nullptr;
    std::size_t rings_bytes_ = 0;
    io_uring_sqe* sqes_ = nullptr;
    std::size_t sqes_bytes_ = 0;
    std::uint32_t* sq_tail_ = nullptr;
    std::uint32_t* sq_array_ = nullptr;
    std::uint32_t sq_mask_ = 0;
    std::uint32_t* cq_head_ = nullptr;
    std::uint32_t* cq_tail_ = nullptr;
    std::uint32_t cq_mask_ = 0;
    io_uring_cqe* cqes_ = nullptr;
};

}  // namespace lmcache::io
