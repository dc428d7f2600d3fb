#include "ring_loop.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <future>
#include <utility>

#include "workers.h"

namespace lmcache::io {

namespace {

constexpr unsigned ENTRIES = 256;
constexpr std::uint64_t WAKE = UINT64_MAX;  // the request that completes when another thread calls `wake`

}  // namespace

// What lives on the ring's thread, from its beginning to its end.
class RingLoop::Session {
public:
    explicit Session(RingLoop& loop) : loop_(loop), ring_(ENTRIES), registrations_(ring_) {
        for (unsigned place = 0; place < ENTRIES - 1; ++place) free_.push_back(place);
    }

    void run() {
        ask_to_be_woken();
        while (!stopping_ || !woken_) {
            bool sleep = hashable_.empty();
            take(loop_.take(sleep));
            fill();
            const int failed = ring_.enter(sleep && hashable_.empty() ? 1 : 0);
            if (failed == -EAGAIN || failed == -EBUSY) std::this_thread::yield();  // no memory for it yet
            ring_.reap([this](std::uint64_t what, int result) { what == WAKE ? wake() : complete(what, result); });
            hash_one();
        }
    }

private:
    struct Piece {
        RingJob* job = nullptr;
        Range range;
    };

    void take(Inbox&& inbox) {
        if (inbox.stop) {
            stopping_ = true;
            loop_.wake();  // the request that waits for it must end before this does
        }
        for (auto& question : inbox.questions) question(registrations_);
        for (Job& job : inbox.jobs) {
            job->waiting = true;
            waiting_.push_back(job.release());
        }
    }

    void ask_to_be_woken() {
        io_uring_sqe& request = ring_.prepare();
        request.opcode = IORING_OP_READ;
        request.fd = loop_.wake_fd_.number();
        request.addr = reinterpret_cast<std::uintptr_t>(&wakings_);
        request.len = sizeof wakings_;
        request.user_data = WAKE;
        woken_ = false;
    }

    void wake() {
        woken_ = true;
        if (!stopping_) ask_to_be_woken();
    }

    // As many requests as the ring has space for, job by job.
    void fill() {
        while (!waiting_.empty() && !free_.empty()) {
            RingJob* job = waiting_.front();
            if (job->has_more()) {
                const unsigned place = free_.back();
                free_.pop_back();
                pieces_[place] = {job, job->next()};
                request(place);
            }
            if (!job->has_more()) {
                waiting_.pop_front();
                job->waiting = false;
                advance(job);
            }
        }
    }

    void request(unsigned place) {
        const Piece& piece = pieces_[place];
        const Operation& operation = piece.job->operation;
        std::byte* const memory = operation.memory + piece.range.begin;
        const auto length = static_cast<std::uint32_t>(piece.range.length());
        const auto known = registrations_.memory_place(memory, length);
        io_uring_sqe& request = ring_.prepare();
        if (operation.reads()) {
            request.opcode = known ? IORING_OP_READ_FIXED : IORING_OP_READ;
        } else {
            request.opcode = known ? IORING_OP_WRITE_FIXED : IORING_OP_WRITE;
        }
        if (known) request.buf_index = *known;
        request.fd = piece.job->file.fd();
        if (const auto file = registrations_.file_place(request.fd); file) {
            request.fd = *file;
            request.flags |= IOSQE_FIXED_FILE;
        }
        request.off = operation.offset + piece.range.begin;
        request.addr = reinterpret_cast<std::uintptr_t>(memory);
        request.len = length;
        request.user_data = place;
    }

    void complete(std::uint64_t place, int result) {
        Piece& piece = pieces_[place];
        RingJob* const job = piece.job;
        if (result > 0) piece.range.begin += static_cast<std::uint64_t>(result);
        const bool whole = result > 0 && piece.range.length() == 0;
        if (!whole && (result > 0 || result == -EINTR)) return request(static_cast<unsigned>(place));
        free_.push_back(static_cast<unsigned>(place));
        if (whole) {
            job->came(piece.range);
        } else {
            job->fail(result != 0 ? result : job->operation.reads() ? -ENODATA : -ENOSPC);
        }
        advance(job);
    }

    // Starts the next step of a job, if it is known already.
    void advance(RingJob* job) {
        if (job->may_hash() && !job->hashing) {
            job->hashing = true;
            hashable_.push_back(job);
        }
        if (job->waiting || job->hashing || !job->phase_over()) return;
        loop_.over_(Job(job));
    }

    // One piece only, to answer meanwhile completed operations and to keep the medium busy.
    void hash_one() {
        if (hashable_.empty()) return;
        RingJob* const job = hashable_.front();
        hashable_.pop_front();
        job->hash_piece();
        job->hashing = false;
        advance(job);
    }

    RingLoop& loop_;
    Ring ring_;
    Registrations registrations_;
    std::deque<RingJob*> waiting_;   // with pieces to ask for
    std::deque<RingJob*> hashable_;  // with a piece to hash
    // One place of the ring is the waking request's, and each piece is one request at most: so there is always space.
    std::array<Piece, ENTRIES> pieces_;
    std::vector<unsigned> free_;
    std::uint64_t wakings_ = 0;
    bool woken_ = false;
    bool stopping_ = false;
};

RingLoop::RingLoop(Over over) : over_(std::move(over)), wake_fd_(0) {
    std::promise<std::exception_ptr> begun;
    thread_ = quiet_thread([this, &begun] {
        std::unique_ptr<Session> session;
        std::exception_ptr failed;
        try {
            session = std::make_unique<Session>(*this);
        } catch (...) {
            failed = std::current_exception();
        }
        begun.set_value(failed);
        if (session) session->run();
    });
    if (const std::exception_ptr failed = begun.get_future().get(); failed) {
        thread_.join();
        std::rethrow_exception(failed);
    }
}

RingLoop::~RingLoop() {
    put([](Inbox& inbox) { inbox.stop = true; });
    thread_.join();
}

void RingLoop::put(const std::function<void(Inbox&)>& change) {
    const std::lock_guard lock(mutex_);
    change(inbox_);
    if (std::exchange(asleep_, false)) wake();
}

void RingLoop::wake() const {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_fd_.number(), &one, sizeof one);
}

RingLoop::Inbox RingLoop::take(bool& sleep) {
    const std::lock_guard lock(mutex_);
    const bool empty = inbox_.jobs.empty() && inbox_.questions.empty() && !inbox_.stop;
    sleep = asleep_ = sleep && empty;
    return std::exchange(inbox_, {});
}

void RingLoop::start(std::vector<Job>&& jobs) {
    put([&jobs](Inbox& inbox) {
        for (Job& job : jobs) inbox.jobs.push_back(std::move(job));
    });
}

bool RingLoop::ask(std::function<bool(Registrations&)> question) {
    std::promise<bool> answer;
    put([&](Inbox& inbox) {
        inbox.questions.push_back([&](Registrations& registrations) { answer.set_value(question(registrations)); });
    });
    return answer.get_future().get();
}

}  // namespace lmcache::io
