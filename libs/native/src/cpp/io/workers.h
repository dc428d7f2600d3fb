// Threads that do what blocks.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace lmcache::io {

// Starts `run` on a thread that gets no signals but those of its own faults: the others are the interpreter's.
std::thread quiet_thread(std::function<void()> run);

class Workers {
public:
    using Task = std::function<void()>;

    explicit Workers(unsigned count);
    Workers(const Workers&) = delete;
    Workers& operator=(const Workers&) = delete;
    ~Workers() { stop(); }

    // From any thread; a task must not throw.
    void post(std::vector<Task>&& tasks);
    // Does what was posted, then ends the threads.  Not from one of them.
    void stop();

private:
    void work();

    std::mutex mutex_;  // guards the two below
    std::deque<Task> tasks_;
    bool stopping_ = false;
    std::condition_variable more_;
    std::vector<std::thread> threads_;
};

}  // namespace lmcache::io
