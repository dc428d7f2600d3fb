#include "chunk_table_binding.h"

#include <cstring>
#include <optional>

#include "chunk_table.h"
#include "number_arguments.h"
#include "python_values.h"

namespace lmcache {

namespace {

constexpr std::size_t LONG_PROMPT_TOKENS = 512;  // where releasing the GIL costs less than keeping it
constexpr std::int64_t CHUNK_TOKENS_MAX = std::int64_t{1} << 24;
constexpr std::int64_t CHUNKS_MAX = std::int64_t{1} << 31;

std::vector<std::uint32_t> tokens_of(nb::handle tokens) {
    if (PyObject_CheckBuffer(tokens.ptr())) return numbers_of<std::uint32_t>(tokens, "tokens");
    const Items items(tokens);
    std::vector<std::uint32_t> words(items.size());
    for (std::size_t at = 0; at < words.size(); ++at) {
        if (!PyLong_Check(items[at])) throw nb::type_error("a token is an integer");
        int overflow = 0;
        const long long token = PyLong_AsLongLongAndOverflow(items[at], &overflow);
        if (overflow != 0 || token < 0 || token > UINT32_MAX) {
            PyErr_SetString(PyExc_OverflowError, "a token is below 0 or above 4294967295");
            throw nb::python_error();
        }
        words[at] = static_cast<std::uint32_t>(token);
    }
    return words;
}

const std::uint8_t* chunk_hash_of(nb::handle hash) {
    const std::uint8_t* bytes = hash_of(hash.ptr());
    if (bytes == nullptr) refuse_argument("a chunk's hash has " + std::to_string(CHUNK_HASH_BYTES) + " bytes");
    return bytes;
}

void make_table(ChunkTable* table, std::int64_t chunk_tokens, std::int64_t chunks_max, std::uint64_t multiplier, nb::bytes key) {
    if (chunk_tokens < 1 || chunk_tokens > CHUNK_TOKENS_MAX) refuse_argument("chunk_tokens must be 1 to 16777216");
    if (chunks_max < 1 || chunks_max > CHUNKS_MAX) refuse_argument("chunks_max must be 1 to 2147483648");
    if (multiplier >= CHUNK_PRIME) refuse_argument("multiplier must be below 2**61 - 1");
    if (key.size() != CHUNK_KEY_BYTES) refuse_argument("a key has 32 bytes");
    new (table) ChunkTable(static_cast<std::size_t>(chunk_tokens), static_cast<std::size_t>(chunks_max), multiplier,
                           static_cast<const std::uint8_t*>(key.data()));
}

std::int64_t add(ChunkTable& table, std::uint16_t space, std::uint64_t mask, nb::handle tokens, nb::handle hash, std::uint32_t place,
                 std::uint64_t parent) {
    if (space == 0) refuse_argument("a space is a number from 1 to 65535");
    const std::uint8_t* bytes = chunk_hash_of(hash);
    const std::vector<std::uint32_t> words = tokens_of(tokens);
    if (words.size() != table.chunk_tokens()) {
        refuse_argument("a chunk has " + std::to_string(table.chunk_tokens()) + " tokens, and not " + std::to_string(words.size()));
    }
    return table.add(space, mask, words.data(), bytes, place, parent);
}

nb::list match(const ChunkTable& table, std::uint16_t space, std::uint64_t mask, nb::handle tokens, std::int64_t stride) {
    const std::uint64_t steps = at_least(1, stride, "stride");
    const std::vector<std::uint32_t> words = tokens_of(tokens);
    std::vector<ChunkMatch> found;
    {
        std::optional<nb::gil_scoped_release> unlocked;
        if (words.size() > LONG_PROMPT_TOKENS) unlocked.emplace();
        found = table.match(space, mask, words.data(), words.size(), steps);
    }
    nb::list matches;
    for (const ChunkMatch& each : found) {
        const Chunk& chunk = table.chunk(each.entry);
        std::uint64_t parent = 0;
        std::memcpy(&parent, chunk.parent, sizeof parent);
        matches.append(nb::make_tuple(each.start, bytes_of(chunk.hash, CHUNK_HASH_BYTES), chunk.place, parent, each.entry,
                                      table.is_missed(each.entry)));
    }
    return matches;
}

}  // namespace

void bind_chunk_table(nb::module_& module) {
    nb::class_<ChunkTable>(module, "ChunkTable")
        .def("__init__", &make_table)
        .def("__len__", &ChunkTable::size)
        .def("add", &add)
        .def("match", &match)
        .def("note", [](ChunkTable& table, std::uint32_t entry, nb::handle hash, bool is_there) {
            table.note(entry, chunk_hash_of(hash), is_there);
        });
}

}  // namespace lmcache
