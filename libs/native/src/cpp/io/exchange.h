// Operations on their way in, answers on their way out.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "blocking_io.h"
#include "event_fd.h"

namespace lmcache::io {

struct Limits {
    std::uint64_t operations;  // under way at a time
    std::uint64_t bytes;       // the same; one operation that is larger goes alone
};

struct Counters {
    std::uint64_t operations = 0;  // answered, those that failed included
    std::uint64_t bytes_read = 0;
    std::uint64_t bytes_written = 0;
    std::uint64_t bounced = 0;
    std::uint64_t errors = 0;
    std::uint64_t in_flight = 0;
    std::uint64_t waiting = 0;
};

// Lets operations pass in the order they came, as many at a time as the limits allow, and keeps answers until they are
// fetched.  Any thread may call anything.
//
//   submitted   waiting | in flight | answered | fetched
//
// An operation is in exactly one of them.
class Exchange {
public:
    explicit Exchange(Limits limits);
    Exchange(const Exchange&) = delete;
    Exchange& operator=(const Exchange&) = delete;

    int event_fd() const { return event_fd_.number(); }

    // Both return what is in flight from now on, and must be started by the caller.  False: closed, and nothing was taken.
    bool submit(std::vector<Operation>&& operations, std::vector<Operation>& admitted);
    std::vector<Operation> answer(const Operation& operation, const Outcome& outcome);

    std::vector<Answer> fetch();
    Counters counters() const;

    // Answers what waits with -ECANCELED and takes nothing more.
    void close();
    bool closed() const;
    // True once nothing is in flight.
    bool wait_idle(std::chrono::steady_clock::time_point deadline);

private:
    std::vector<Operation> admit();
    void put(const Answer& answer);

    const Limits limits_;
    const EventFd event_fd_;
    mutable std::mutex mutex_;  // guards all below
    std::condition_variable idle_;
    std::deque<Operation> waiting_;
    std::vector<Answer> answers_;
    Counters counters_;
    std::uint64_t bytes_in_flight_ = 0;
    bool closed_ = false;
};

}  // namespace lmcache::io
