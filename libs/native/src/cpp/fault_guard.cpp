#include "fault_guard.h"

#include <atomic>
#include <cerrno>
#include <csetjmp>
#include <csignal>
#include <mutex>

namespace lmcache {

namespace {

struct Landing {
    sigjmp_buf place;
};

// In the thread's static block, because a handler must not be the first to touch it: that could allocate memory.
[[gnu::tls_model("initial-exec")]] thread_local Landing* landing = nullptr;
[[gnu::tls_model("initial-exec")]] thread_local bool handing_on = false;

// Never freed, because a handler may be reading it; there is one for each time that our handler was put in place.
std::atomic<const struct sigaction*> previous = nullptr;
std::mutex installing;

void die_by_default(int signal) {
    struct sigaction action = {};
    action.sa_handler = SIG_DFL;
    sigaction(signal, &action, nullptr);
    raise(signal);
}

// Python's faulthandler prints, puts back what was before it, and raises the signal again.  Where that was this handler, it
// comes a second time, and no other handler is left.
void hand_on(int signal, siginfo_t* info, void* context) {
    const struct sigaction* next = previous.load(std::memory_order_acquire);
    const bool from_kernel = info->si_code > 0;
    if (handing_on || next == nullptr || (next->sa_flags & SA_SIGINFO) == 0) {
        const auto handler = next == nullptr ? SIG_DFL : next->sa_handler;
        if (handler == SIG_IGN && !from_kernel) return;
        if (handing_on || handler == SIG_DFL || handler == SIG_IGN) return die_by_default(signal);
        handing_on = true;
        handler(signal);
    } else {
        handing_on = true;
        next->sa_sigaction(signal, info, context);
    }
    handing_on = false;
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
    if (landing != nullptr && info->si_code > 0) siglongjmp(landing->place, 1);
    const int error = errno;
    hand_on(signal, info, context);
    errno = error;
}

bool is_ours(const struct sigaction& action) {
    return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == &on_bus_error;
}

}  // namespace

void install_fault_guard() {
    struct sigaction now = {};
    if (sigaction(SIGBUS, nullptr, &now) != 0 || is_ours(now)) return;
    const std::lock_guard lock(installing);
    if (sigaction(SIGBUS, nullptr, &now) != 0 || is_ours(now)) return;
    previous.store(new struct sigaction(now), std::memory_order_release);
    struct sigaction action = {};
    action.sa_sigaction = &on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;  // what is raised while handing on must arrive meanwhile
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, nullptr);
}

[[gnu::noinline]] bool run_guarded(void (*work)(void*), void* argument) {
    // A fault whose signal the thread blocks ends the process, and no handler is asked.
    sigset_t faults, before;
    sigemptyset(&faults);
    sigaddset(&faults, SIGBUS);
    pthread_sigmask(SIG_UNBLOCK, &faults, &before);
    Landing here;
    if (sigsetjmp(here.place, 0) != 0) {
        landing = nullptr;
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        return false;
    }
    handing_on = false;
    landing = &here;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    work(argument);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    landing = nullptr;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return true;
}

}  // namespace lmcache
