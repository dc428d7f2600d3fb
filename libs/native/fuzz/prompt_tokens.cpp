// A run of msgpack integers, as an engine may send it, against a reader that takes one integer at a time.
#include "../src/cpp/prompt_tokens.h"

#include <optional>

#include "input.h"

namespace {

// The integer at `data` and the bytes that it takes, if it is a token.
std::optional<std::pair<std::uint32_t, std::size_t>> one_token(const std::uint8_t* data, std::size_t left) {
    if (left == 0) return std::nullopt;
    if (data[0] < 0x80) return {{data[0], 1}};
    if (data[0] < 0xCC || data[0] > 0xD3) return std::nullopt;
    const bool is_signed = data[0] >= 0xD0;
    const std::size_t size = std::size_t{1} << (data[0] - (is_signed ? 0xD0 : 0xCC));
    if (left < 1 + size || (is_signed && data[1] >= 0x80)) return std::nullopt;
    std::uint64_t value = 0;
    for (std::size_t at = 1; at <= size; ++at) value = value * 256 + data[at];
    if (value > UINT32_MAX) return std::nullopt;
    return {{static_cast<std::uint32_t>(value), 1 + size}};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    Input input(data, size);
    const std::size_t chunk_bytes = lmcache::TOKEN_BYTES * input.below(6);  // 0: nothing is hashed
    const std::size_t carry = chunk_bytes == 0 ? 0 : lmcache::TOKEN_BYTES * input.below(chunk_bytes / lmcache::TOKEN_BYTES);
    const std::size_t count = std::min<std::size_t>(input.byte(), input.left());  // as the binding has checked
    // A copy of exactly this size: a byte read behind it is a fault that the sanitizer sees.
    const std::vector<std::uint8_t> frame(input.rest(), input.rest() + input.left());

    lmcache::Prompt prompt;
    prompt.rest.assign(carry, 7);
    lmcache::decode(prompt, frame.data(), frame.data() + frame.size(), count, chunk_bytes, std::vector<std::uint8_t>(32));

    std::vector<std::uint8_t> words(carry, 7);
    std::vector<std::size_t> ends;
    std::size_t at = 0;
    bool whole = true;
    for (std::size_t read = 0; read < count && whole; ++read) {
        const auto token = one_token(frame.data() + at, frame.size() - at);
        whole = token.has_value();
        if (!whole) break;
        at += token->second;
        for (int shift = 24; shift >= 0; shift -= 8) words.push_back(static_cast<std::uint8_t>(token->first >> shift));
        if (chunk_bytes != 0 && words.size() % chunk_bytes == 0) ends.push_back(at);
    }
    require(whole == (prompt.fault == nullptr));
    if (!whole) return 0;
    require(prompt.end == at);
    require(prompt.ends == ends);
    require(prompt.hashes.size() == ends.size() * BLAKE3_OUT_LEN);
    const std::size_t hashed = chunk_bytes == 0 ? 0 : words.size() / chunk_bytes * chunk_bytes;
    require(prompt.rest == std::vector<std::uint8_t>(words.begin() + static_cast<std::ptrdiff_t>(hashed), words.end()));
    return 0;
}
