#include "chunk_table_binding.h"
#include "fault_guard.h"
#include "io/fault_gate.h"
#include "page_copy_binding.h"
#include "prompt.h"
#include "recency.h"
#include "row_move_binding.h"
#include "slot_table.h"

// What lmcache-core expects of this module; it grows with every change of a kernel's interface.
constexpr int KERNEL_ABI = 1;
// The same for copy_pages, which others use than core.
constexpr int PAGE_COPY_ABI = 1;
// And for read_rows and write_rows.
constexpr int ROW_MOVE_ABI = 1;
// And for ChunkTable, with read_prompt beside it.
constexpr int CHUNK_TABLE_ABI = 1;

// The process's one guard, for the module beside this one.
constexpr lmcache::io::FaultGuard FAULT_GUARD{lmcache::install_fault_guard, lmcache::run_guarded};

NB_MODULE(_kernels, module) {
    // A server ends with its tables still in use, which is not worth a page about leaks on standard error.
    nanobind::set_leak_warnings(false);
    module.attr("KERNEL_ABI") = KERNEL_ABI;
    module.attr("PAGE_COPY_ABI") = PAGE_COPY_ABI;
    module.attr("ROW_MOVE_ABI") = ROW_MOVE_ABI;
    module.attr("CHUNK_TABLE_ABI") = CHUNK_TABLE_ABI;
    module.attr("_fault_guard") = nanobind::capsule(&FAULT_GUARD);
    lmcache::bind_chunk_table(module);
    lmcache::bind_page_copy(module);
    lmcache::bind_prompt(module);
    lmcache::bind_recency(module);
    lmcache::bind_row_move(module);
    lmcache::bind_slot_table(module);
}
