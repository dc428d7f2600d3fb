// The process's one guard against memory that vanishes (../fault_guard.h), as this module reaches it.
//
// The guard is a signal handler and belongs to `_kernels`; a second one beside it would have each module put its own in
// front of the other's, again and again.
#pragma once

#include <type_traits>

namespace lmcache::io {

struct FaultGuard {
    void (*install)();
    bool (*run)(void (*work)(void*), void* argument);
};

// Must be called before anything is `guarded`; it must stay valid for ever.
void set_fault_guard(const FaultGuard* guard);

const FaultGuard& fault_guard();

// Calls `work`; false where memory vanished under it.  It must own nothing that needs a destructor.
template <typename Work> bool guarded(Work&& work) {
    using Plain = std::remove_reference_t<Work>;
    return fault_guard().run([](void* argument) { (*static_cast<Plain*>(argument))(); }, &work);
}

}  // namespace lmcache::io
