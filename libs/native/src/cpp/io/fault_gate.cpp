#include "fault_gate.h"

#include <atomic>

namespace lmcache::io {

namespace {

std::atomic<const FaultGuard*> process_guard = nullptr;

}  // namespace

void set_fault_guard(const FaultGuard* guard) { process_guard.store(guard, std::memory_order_release); }

const FaultGuard& fault_guard() { return *process_guard.load(std::memory_order_acquire); }

}  // namespace lmcache::io
