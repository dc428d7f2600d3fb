#include "prompt.h"

#include <optional>

#include "prompt_tokens.h"

namespace lmcache {

namespace {

constexpr std::size_t LONG_INPUT_BYTES = 2048;  // where releasing the GIL costs less than keeping it

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
    // A token takes a byte or more: a large count alone allocates no more memory than the bytes that were sent.
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
