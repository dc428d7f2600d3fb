// In the place of ring_mover.cpp where the system's headers know no io_uring.
#include <cerrno>
#include <system_error>

#include "mover.h"

namespace lmcache::io {

bool has_io_uring() { return false; }

std::unique_ptr<Mover> make_ring_mover(Exchange&, unsigned) {
    throw std::system_error(ENOSYS, std::generic_category(), "io_uring was not built in");
}

}  // namespace lmcache::io
