#include "digest.h"

#include <cstring>

#include "fault_gate.h"

#if defined(__x86_64__)
#include <xxh_x86dispatch.h>  // SSE2 to AVX-512, chosen when it runs
#endif

namespace lmcache::io {

Digest::Digest() { XXH3_128bits_reset(&state_); }

bool Digest::update(const std::byte* memory, std::uint64_t length) {
    return guarded([=, this] { add(memory, length); });
}

void Digest::add(const std::byte* memory, std::uint64_t length) { XXH3_128bits_update(&state_, memory, length); }

DigestBytes Digest::finish() const {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state_));
    DigestBytes bytes;
    static_assert(sizeof canonical.digest == std::tuple_size_v<DigestBytes>);
    std::memcpy(bytes.data(), canonical.digest, bytes.size());
    return bytes;
}

}  // namespace lmcache::io
