// Turns a page of memory that vanishes under a copy into an answer instead of the end of the process.
//
// Memory that another process shares disappears when that process truncates its segment.  A thread that touches it then gets
// a SIGBUS.  No check beforehand can exclude that.
#pragma once

namespace lmcache {

// Puts the process's SIGBUS handler in place, in front of whatever is there; does nothing where it is already.  Call it
// before each `run_guarded`: other code may have put its own handler in front, or taken ours away.
void install_fault_guard();

// Calls `work(argument)` on this thread; false where memory vanished under it.  Then it was left in the middle, without
// running destructors: it must own nothing.  Faults elsewhere are handed to the handler that was there before.
bool run_guarded(void (*work)(void*), void* argument);

}  // namespace lmcache
