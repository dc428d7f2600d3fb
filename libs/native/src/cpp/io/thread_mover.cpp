// One operation at a time on each worker, with blocking calls.
#include <utility>

#include "fault_gate.h"
#include "mover.h"
#include "workers.h"

namespace lmcache::io {

namespace {

class ThreadMover : public Mover {
public:
    ThreadMover(Exchange& exchange, unsigned workers) : exchange_(exchange), workers_(workers) { fault_guard().install(); }

    void start(std::vector<Operation>&& operations) override {
        std::vector<Workers::Task> tasks;
        tasks.reserve(operations.size());
        for (Operation& operation : operations) {
            tasks.push_back([this, taken = std::move(operation)] {
                start(exchange_.answer(taken, run_blocking(taken)));
            });
        }
        if (!tasks.empty()) workers_.post(std::move(tasks));
    }

private:
    Exchange& exchange_;
    Workers workers_;
};

}  // namespace

std::unique_ptr<Mover> make_thread_mover(Exchange& exchange, unsigned workers) {
    return std::make_unique<ThreadMover>(exchange, workers);
}

}  // namespace lmcache::io
