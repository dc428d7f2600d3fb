#include "prompt.h"

#include <cstring>
#include <optional>
#include <string>

extern "C" {
#include "blake3.h"
}

namespace lmcache {

namespace {

constexpr std::size_t TOKEN_BYTES = 4;
constexpr std::size_t LONG_INPUT_BYTES = 2048;  // where giving the GIL away costs less than keeping it

struct Prompt {
    std::vector<std::uint8_t> hashes;
    std::vector<std::size_t> ends;
    std::vector<std::uint8_t> rest;
    std::size_t end = 0;
    const char* fault = nullptr;
};

std::uint64_t big_endian(const std::uint8_t* data, std::size_t size) {
    std::uint64_t value = 0;
    for (std::size_t at = 0; at < size; ++at) value = value << 8 | data[at];
    return value;
}

// Reads msgpack integers one after the other.
class Tokens {
public:
    Tokens(const std::uint8_t* at, const std::uint8_t* end) : at_(at), end_(end) {}

    const std::uint8_t* at() const { return at_; }
    const char* fault() const { return fault_; }

    // The next one, or false with a fault.
    bool next(std::uint32_t& token) {
        if (at_ == end_) return fail("the frame ends before the last token");
        const std::uint8_t lead = *at_;
        if (lead < 0x80) {
            token = lead;
            ++at_;
            return true;
        }
        if (lead >= 0xE0) return fail(OUT_OF_RANGE);
        if (lead < 0xCC || lead > 0xD3) return fail("a token is no integer");
        const std::size_t size = std::size_t{1} << (lead & 3);
        if (static_cast<std::size_t>(end_ - at_) < 1 + size) return fail("the frame ends within a token");
        const std::uint64_t value = big_endian(at_ + 1, size);
        const bool negative = lead >= 0xD0 && (at_[1] & 0x80) != 0;
        if (negative || value > UINT32_MAX) return fail(OUT_OF_RANGE);
        token = static_cast<std::uint32_t>(value);
        at_ += 1 + size;
        return true;
    }

private:
    static constexpr const char* OUT_OF_RANGE = "a token is below 0 or above 4294967295";

    bool fail(const char* fault) {
        fault_ = fault;
        return false;
    }

    const std::uint8_t* at_;
    const std::uint8_t* end_;
    const char* fault_ = nullptr;
};

void put(std::uint8_t* to, std::uint32_t token) {
    to[0] = static_cast<std::uint8_t>(token >> 24);
    to[1] = static_cast<std::uint8_t>(token >> 16);
    to[2] = static_cast<std::uint8_t>(token >> 8);
    to[3] = static_cast<std::uint8_t>(token);
}

// Fills `prompt.rest`, which begins with the carry, chunk by chunk; 0 bytes per chunk: everything stays in it.
void decode(Prompt& prompt, const std::uint8_t* begin, const std::uint8_t* end, std::size_t count,
            std::size_t chunk_bytes, std::vector<std::uint8_t> previous) {
    Tokens tokens(begin, end);
    std::size_t filled = prompt.rest.size();
    prompt.rest.resize(chunk_bytes != 0 ? chunk_bytes : filled + TOKEN_BYTES * count);
    std::uint8_t digest[BLAKE3_OUT_LEN];
    for (std::size_t read = 0; read < count; ++read) {
        std::uint32_t token = 0;
        if (!tokens.next(token)) {
            prompt.fault = tokens.fault();
            return;
        }
        put(prompt.rest.data() + filled, token);
        filled += TOKEN_BYTES;
        if (filled != chunk_bytes) continue;
        blake3_hasher hasher;
        blake3_hasher_init(&hasher);
        blake3_hasher_update(&hasher, previous.data(), previous.size());
        blake3_hasher_update(&hasher, prompt.rest.data(), chunk_bytes);
        blake3_hasher_finalize(&hasher, digest, sizeof digest);
        previous.assign(digest, digest + sizeof digest);
        prompt.hashes.insert(prompt.hashes.end(), digest, digest + sizeof digest);
        prompt.ends.push_back(static_cast<std::size_t>(tokens.at() - begin));
        filled = 0;
    }
    prompt.rest.resize(filled);
    prompt.end = static_cast<std::size_t>(tokens.at() - begin);
}

// The bytes of a Python object, as long as this lives.
class Bytes {
public:
    explicit Bytes(nb::handle object) {
        if (PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_SIMPLE) != 0) throw nb::python_error();
    }
    Bytes(const Bytes&) = delete;
    Bytes& operator=(const Bytes&) = delete;
    ~Bytes() { PyBuffer_Release(&buffer_); }

    const std::uint8_t* data() const { return static_cast<const std::uint8_t*>(buffer_.buf); }
    std::size_t size() const { return static_cast<std::size_t>(buffer_.len); }
    std::vector<std::uint8_t> copy() const { return {data(), data() + size()}; }

private:
    Py_buffer buffer_;
};

nb::tuple read_prompt(nb::handle frame, std::int64_t offset, std::int64_t count, std::int64_t chunk_tokens,
                      nb::handle previous, nb::handle carry) {
    const Bytes bytes(frame), last(previous), front(carry);
    if (offset < 0 || static_cast<std::size_t>(offset) > bytes.size()) throw nb::value_error("offset is outside of the frame");
    if (chunk_tokens < 1) throw nb::value_error("chunk_tokens must be at least 1");
    const std::size_t begin = static_cast<std::size_t>(offset);
    if (count < 0) throw nb::value_error("count must not be negative");
    // A token takes a byte or more, so that nobody gets more memory by a number than by what was really sent.
    if (static_cast<std::size_t>(count) > bytes.size() - begin) throw nb::value_error("the frame ends before the last token");
    const std::size_t chunk_bytes = last.size() != 0 ? TOKEN_BYTES * static_cast<std::size_t>(chunk_tokens) : 0;
    if (front.size() % TOKEN_BYTES != 0 || (chunk_bytes != 0 && front.size() >= chunk_bytes)) {
        throw nb::value_error("carry must be whole tokens, and fewer than a chunk");
    }
    Prompt prompt;
    prompt.rest = front.copy();
    {
        std::optional<nb::gil_scoped_release> unlocked;
        if (static_cast<std::size_t>(count) > LONG_INPUT_BYTES) unlocked.emplace();
        decode(prompt, bytes.data() + begin, bytes.data() + bytes.size(), static_cast<std::size_t>(count), chunk_bytes,
               last.copy());
    }
    if (prompt.fault != nullptr) throw nb::value_error(prompt.fault);
    nb::list hashes;
    for (std::size_t at = 0; at < prompt.hashes.size(); at += HASH_BYTES) {
        hashes.append(bytes_of(prompt.hashes.data() + at, HASH_BYTES));
    }
    return nb::make_tuple(hashes, list_of(prompt.ends), bytes_of(prompt.rest.data(), prompt.rest.size()), begin + prompt.end);
}

}  // namespace

void bind_prompt(nb::module_& module) {
    module.def("read_prompt", &read_prompt, nb::arg("frame"), nb::arg("offset"), nb::arg("count"), nb::arg("chunk_tokens"),
               nb::arg("previous"), nb::arg("carry"));
}

}  // namespace lmcache
