#include "registrations.h"

#include <iterator>

namespace lmcache::io {

namespace {

constexpr unsigned PIECES = 16384;  // the kernel's limit
constexpr unsigned FILES = 64;

}  // namespace

Registrations::Registrations(Ring& ring)
    : ring_(ring), has_memory_(ring.make_buffer_table(PIECES)), has_files_(ring.make_file_table(FILES)) {}

bool Registrations::add_memory(std::byte* memory, std::uint64_t length) {
    const std::uint64_t begin = reinterpret_cast<std::uintptr_t>(memory), end = begin + length;
    if (!has_memory_ || pieces_.size() >= PIECES) return false;
    const auto next = pieces_.lower_bound(begin);
    const bool overlaps = (next != pieces_.end() && next->first < end) ||
                          (next != pieces_.begin() && std::prev(next)->second.end > begin);
    if (overlaps) return false;
    const auto place = static_cast<std::uint16_t>(pieces_.size());  // taken in turn, and given back from the end
    if (!ring_.set_buffer(place, memory, length)) return false;
    pieces_[begin] = {end, place};
    return true;
}

void Registrations::drop_memory(const std::byte* memory, std::uint64_t length) {
    const std::uint64_t begin = reinterpret_cast<std::uintptr_t>(memory);
    const auto first = pieces_.lower_bound(begin), last = pieces_.lower_bound(begin + length);
    for (auto piece = first; piece != last; ++piece) ring_.set_buffer(piece->second.place, nullptr, 0);
    pieces_.erase(first, last);
}

bool Registrations::add_file(int fd) {
    struct stat status = {};
    if (!has_files_ || files_.size() >= FILES || files_.contains(fd) || ::fstat(fd, &status) != 0) return false;
    const auto place = static_cast<std::uint16_t>(files_.size());
    if (!ring_.set_file(place, fd)) return false;
    files_[fd] = {status.st_dev, status.st_ino, place};
    return true;
}

std::optional<std::uint16_t> Registrations::memory_place(const std::byte* memory, std::uint64_t length) const {
    const std::uint64_t begin = reinterpret_cast<std::uintptr_t>(memory);
    const auto next = pieces_.upper_bound(begin);
    if (next == pieces_.begin()) return std::nullopt;
    const Piece& piece = std::prev(next)->second;
    if (piece.end - begin < length || piece.end < begin) return std::nullopt;
    return piece.place;
}

std::optional<std::uint16_t> Registrations::file_place(int fd) const {
    const auto found = files_.find(fd);
    if (found == files_.end()) return std::nullopt;
    // The number may be another file's by now; the place is still the old one's.
    struct stat status = {};
    if (::fstat(fd, &status) != 0 || status.st_dev != found->second.device || status.st_ino != found->second.inode) return std::nullopt;
    return found->second.place;
}

}  // namespace lmcache::io
