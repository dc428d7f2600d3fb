#include "workers.h"

#include <pthread.h>
#include <signal.h>

#include <iterator>
#include <utility>

namespace lmcache::io {

namespace {

class SignalsBlocked {
public:
    SignalsBlocked() {
        sigset_t most;
        sigfillset(&most);
        for (const int fault : {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) sigdelset(&most, fault);
        pthread_sigmask(SIG_BLOCK, &most, &before_);
    }
    SignalsBlocked(const SignalsBlocked&) = delete;
    SignalsBlocked& operator=(const SignalsBlocked&) = delete;
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

private:
    sigset_t before_;
};

}  // namespace

std::thread quiet_thread(std::function<void()> run) {
    const SignalsBlocked inherited;
    return std::thread(std::move(run));
}

Workers::Workers(unsigned count) {
    threads_.reserve(count);
    try {
        while (threads_.size() < count) threads_.push_back(quiet_thread([this] { work(); }));
    } catch (...) {
        stop();
        throw;
    }
}

void Workers::post(std::vector<Task>&& tasks) {
    const std::size_t count = tasks.size();
    // Notified with the lock held: this task may be the last one, and this object be destroyed when it is done.
    const std::lock_guard lock(mutex_);
    tasks_.insert(tasks_.end(), std::make_move_iterator(tasks.begin()), std::make_move_iterator(tasks.end()));
    count == 1 ? more_.notify_one() : more_.notify_all();
}

void Workers::stop() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    more_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
}

void Workers::work() {
    std::unique_lock lock(mutex_);
    for (;;) {
        more_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
        if (tasks_.empty()) return;
        Task task = std::move(tasks_.front());
        tasks_.pop_front();
        lock.unlock();
        task();
        task = nullptr;  // what it owns goes without the lock
        lock.lock();
    }
}

}  // namespace lmcache::io
