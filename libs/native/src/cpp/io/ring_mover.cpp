// Whole blocks between aligned memory and a medium, past the page cache, go through a ring.  All else, and what blocks before
// and after, is done by workers: what the page cache has to do with, the kernel would do on threads of its own, and these
// cost less.
#include <cerrno>
#include <utility>

#include "fault_gate.h"
#include "mover.h"
#include "ring_loop.h"
#include "workers.h"

namespace lmcache::io {

namespace {

using Job = RingLoop::Job;

class RingMover : public Mover {
public:
    RingMover(Exchange& exchange, unsigned workers)
        : exchange_(exchange), loop_([this](Job job) { phase_over(std::move(job)); }), workers_(workers) {
        fault_guard().install();
    }

    void start(std::vector<Operation>&& operations) override {
        std::vector<Job> ready;
        std::vector<Workers::Task> tasks;
        for (Operation& operation : operations) {
            Job job = std::make_unique<RingJob>(std::move(operation));
            const Kind kind = job->operation.kind;
            if (kind != Kind::read && kind != Kind::write) {
                tasks.push_back(later(std::move(job), &RingMover::open));
            } else if (job->failed = job->file.open(job->operation); job->failed != 0) {
                tasks.push_back(later(std::move(job), &RingMover::conclude));
            } else if (suits_ring(*job)) {
                ready.push_back(std::move(job));
            } else {
                tasks.push_back(later(std::move(job), &RingMover::run_here));
            }
        }
        if (!ready.empty()) loop_.start(std::move(ready));
        if (!tasks.empty()) workers_.post(std::move(tasks));
    }

    bool register_memory(std::byte* memory, std::uint64_t length) override {
        return loop_.ask([=](Registrations& registrations) { return registrations.add_memory(memory, length); });
    }

    void forget_memory(std::byte* memory, std::uint64_t length) override {
        loop_.ask([=](Registrations& registrations) {
            registrations.drop_memory(memory, length);
            return true;
        });
    }

    bool register_file(int fd) override {
        return loop_.ask([=](Registrations& registrations) { return registrations.add_file(fd); });
    }

private:
    static bool suits_ring(const RingJob& job) {
        return job.file.direct() && job.operation.length > 0 && job.operation.aligned();
    }

    // A task must be copyable and a job is not; every task that is posted runs once.
    Workers::Task later(Job job, void (RingMover::*next)(Job)) {
        return [this, next, owned = job.release()] { (this->*next)(Job(owned)); };
    }

    void post(Job job, void (RingMover::*next)(Job)) {
        std::vector<Workers::Task> tasks;
        tasks.push_back(later(std::move(job), next));
        workers_.post(std::move(tasks));
    }

    void to_ring(Job job) {
        std::vector<Job> jobs;
        jobs.push_back(std::move(job));
        loop_.start(std::move(jobs));
    }

    // On the ring's thread.
    void phase_over(Job job) {
        const Operation& operation = job->operation;
        if (job->failed == -EINVAL || job->failed == -EAGAIN) return post(std::move(job), &RingMover::run_here);
        if (job->has_head_left()) {
            if (operation.durability == Durability::before_head_and_answer) return post(std::move(job), &RingMover::sync_then_head);
            job->begin_head();
            return to_ring(std::move(job));
        }
        const bool blocks = operation.kind == Kind::write_file || operation.durability != Durability::none;
        blocks ? post(std::move(job), &RingMover::conclude) : conclude(std::move(job));
    }

    // On a worker.
    void open(Job job) {
        if (job->operation.kind == Kind::copy) return answer(*job, run_blocking(job->operation));
        job->failed = job->file.open(job->operation);
        if (job->failed != 0) return conclude(std::move(job));
        if (job->operation.kind != Kind::sync && suits_ring(*job)) return to_ring(std::move(job));
        run_here(std::move(job));
    }

    // On a worker: from the beginning.
    void run_here(Job job) { answer(*job, run_blocking(job->operation, job->file)); }

    // On a worker.
    void sync_then_head(Job job) {
        job->failed = job->file.sync();
        if (job->failed != 0) return conclude(std::move(job));
        job->begin_head();
        to_ring(std::move(job));
    }

    void conclude(Job job) {
        const Operation& operation = job->operation;
        const std::int64_t moved = job->failed != 0 ? job->failed : static_cast<std::int64_t>(operation.length);
        Outcome outcome{.result = job->file.conclude(operation, moved)};
        if (outcome.result >= 0 && operation.digest_from) outcome.digest = job->digest.finish();
        answer(*job, outcome);
    }

    void answer(const RingJob& job, const Outcome& outcome) { start(exchange_.answer(job.operation, outcome)); }

    Exchange& exchange_;
    RingLoop loop_;
    Workers workers_;  // ends first: a worker may be about to hand the loop a job
};

}  // namespace

bool has_io_uring() { return Ring::works(); }

std::unique_ptr<Mover> make_ring_mover(Exchange& exchange, unsigned workers) {
    return std::make_unique<RingMover>(exchange, workers);
}

}  // namespace lmcache::io
