#include "exchange.h"

#include <unistd.h>

#include <cerrno>
#include <iterator>
#include <utility>

namespace lmcache::io {

Exchange::Exchange(Limits limits) : limits_(limits), event_fd_(EFD_NONBLOCK) {}

bool Exchange::submit(std::vector<Operation>&& operations, std::vector<Operation>& admitted) {
    const std::lock_guard lock(mutex_);
    if (closed_) return false;
    waiting_.insert(waiting_.end(), std::make_move_iterator(operations.begin()), std::make_move_iterator(operations.end()));
    admitted = admit();
    return true;
}

std::vector<Operation> Exchange::admit() {
    std::vector<Operation> admitted;
    while (!waiting_.empty() && counters_.in_flight < limits_.operations) {
        const std::uint64_t length = waiting_.front().length;
        const bool fits = length <= limits_.bytes && bytes_in_flight_ <= limits_.bytes - length;
        if (counters_.in_flight > 0 && !fits) break;
        bytes_in_flight_ += length;
        ++counters_.in_flight;
        admitted.push_back(std::move(waiting_.front()));
        waiting_.pop_front();
    }
    return admitted;
}

std::vector<Operation> Exchange::answer(const Operation& operation, const Outcome& outcome) {
    const std::lock_guard lock(mutex_);
    --counters_.in_flight;
    bytes_in_flight_ -= operation.length;
    counters_.bounced += outcome.bounced ? 1 : 0;
    if (outcome.result >= 0) {
        const auto moved = static_cast<std::uint64_t>(outcome.result);
        counters_.bytes_read += operation.reads() ? moved : 0;
        counters_.bytes_written += operation.writes() ? moved : 0;
    }
    put({operation.token, outcome.result, outcome.digest});
    if (counters_.in_flight == 0) idle_.notify_all();
    return admit();
}

void Exchange::put(const Answer& answer) {
    ++counters_.operations;
    counters_.errors += answer.result < 0 ? 1 : 0;
    answers_.push_back(answer);
    if (answers_.size() > 1) return;
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(event_fd_.number(), &one, sizeof one);
}

std::vector<Answer> Exchange::fetch() {
    const std::lock_guard lock(mutex_);
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = ::read(event_fd_.number(), &count, sizeof count);
    return std::exchange(answers_, {});
}

Counters Exchange::counters() const {
    const std::lock_guard lock(mutex_);
    Counters now = counters_;
    now.waiting = waiting_.size();
    return now;
}

void Exchange::close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    for (const Operation& operation : waiting_) put({operation.token, -ECANCELED, std::nullopt});
    waiting_.clear();
}

bool Exchange::closed() const {
    const std::lock_guard lock(mutex_);
    return closed_;
}

bool Exchange::wait_idle(std::chrono::steady_clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    return idle_.wait_until(lock, deadline, [this] { return counters_.in_flight == 0; });
}

}  // namespace lmcache::io
