// The thread that drives a ring.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "event_fd.h"
#include "registrations.h"
#include "ring_job.h"

namespace lmcache::io {

class RingLoop {
public:
    using Job = std::unique_ptr<RingJob>;

    // Called on the ring's thread with a job whose bytes were moved, or were not; -EINVAL and -EAGAIN say that the ring
    // cannot do it.  It must not block.
    using Over = std::function<void(Job)>;

    // Throws std::system_error where no ring is available.
    explicit RingLoop(Over over);
    RingLoop(const RingLoop&) = delete;
    RingLoop& operator=(const RingLoop&) = delete;
    // Only after its last job.
    ~RingLoop();

    // From any thread.  The job's file must be open.
    void start(std::vector<Job>&& jobs);
    // From any other thread: waits until the ring's thread has called it.
    bool ask(std::function<bool(Registrations&)> question);

private:
    class Session;

    struct Inbox {
        std::vector<Job> jobs;
        std::vector<std::function<void(Registrations&)>> questions;
        bool stop = false;
    };

    void put(const std::function<void(Inbox&)>& change);
    // What was put since; with `sleep`, the next `put` wakes the ring where nothing was.
    Inbox take(bool& sleep);
    void wake() const;

    const Over over_;
    const EventFd wake_fd_;
    std::mutex mutex_;  // guards the two below
    Inbox inbox_;
    bool asleep_ = false;
    std::thread thread_;
};

}  // namespace lmcache::io
