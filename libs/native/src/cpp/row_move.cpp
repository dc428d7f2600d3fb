#include "row_move.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "checked_numbers.h"
#include "fault_guard.h"
#include "row_copy.h"
#include "turn_rows.h"

namespace lmcache {

namespace {

using Offsets = std::vector<std::uint64_t>;

// Which elements of K or V lie side by side, in the object as in the pages.
enum class Order {
    rows,     // those of a slot
    columns,  // those of all slots, element by element
    any,
};

// Where the elements of K or V are: `sources` and `targets` are offsets in bytes from a head's part of a block that is read and of one
// that is written, one for each slot (rows), each element (columns), or each element of each slot (any).
struct Plane {
    Order order = Order::any;
    std::uint64_t elements = 0;
    Offsets sources;
    Offsets targets;
    Offsets dense;  // where the rows of slots are one behind the other
};

Order order_of(const Places& places, std::uint64_t row) {
    const auto ascend = [](const Offsets& places_of) {
        for (std::size_t index = 1; index < places_of.size(); ++index) {
            if (places_of[index] != places_of[0] + index) return false;
        }
        return true;
    };
    // A part of a block is in one piece only within a row.
    const auto whole = [row](const Offsets& starts, std::uint64_t first, std::uint64_t count) {
        return std::all_of(starts.begin(), starts.end(), [&](std::uint64_t start) { return (start + first) % row + count <= row; });
    };
    if (ascend(places.elements) && whole(places.slots, places.elements[0], places.elements.size())) return Order::rows;
    if (ascend(places.slots) && whole(places.elements, places.slots[0], places.slots.size())) return Order::columns;
    return Order::any;
}

Plane plane_of(const RowMove& move, const Places& places) {
    const std::uint64_t item = move.item_bytes(), row = move.shape.head_bytes / item;
    Plane plane{.order = order_of(places, row), .elements = places.elements.size(), .sources = {}, .targets = {}, .dense = {}};
    const std::size_t slots = plane.order == Order::columns ? 1 : places.slots.size();
    const std::size_t elements = plane.order == Order::rows ? 1 : places.elements.size();
    for (std::size_t slot = 0; slot < slots; ++slot) {
        for (std::size_t element = 0; element < elements; ++element) {
            const std::uint64_t place = places.slots[slot] + places.elements[element];
            const std::uint64_t in_object = place / row * move.shape.slot_bytes() + place % row * item;
            const std::uint64_t in_pages = place / row * move.shape.slot_stride + place % row * item;
            plane.sources.push_back(move.into_object ? in_pages : in_object);
            plane.targets.push_back(move.into_object ? in_object : in_pages);
            plane.dense.push_back(place * item);
        }
    }
    return plane;
}

// Slots that are in one block of what is read and in one block of what is written.
struct Piece {
    std::uint64_t from_block;
    std::uint64_t from_slot;
    std::uint64_t to_block;
    std::uint64_t to_slot;
    std::uint64_t count;
};

std::vector<Piece> pieces_of(const RowMove& move) {
    const std::uint64_t per_block = move.shape.slots_per_block;
    std::vector<Piece> pieces;
    for (std::uint64_t done = 0; done < move.count;) {
        const std::uint64_t own = move.first_slot + done, other = move.first_page_slot + done;
        const std::uint64_t left = per_block - std::max(own % per_block, other % per_block);
        const std::uint64_t count = std::min(left, move.count - done);
        const auto block = static_cast<std::uint64_t>(move.blocks[other / per_block]);
        if (move.into_object) pieces.push_back({block, other % per_block, own / per_block, own % per_block, count});
        else pieces.push_back({own / per_block, own % per_block, block, other % per_block, count});
        done += count;
    }
    return pieces;
}

// How the keys of one layer are turned.
struct LayerTurn {
    std::uint64_t pairs = 0;
    bool neighbours = false;
    std::vector<float> cos;  // of each pair
    std::vector<float> sin;
    std::vector<float> row_cos;  // as `PairRow` has them
    std::vector<float> row_sin;

    std::uint64_t first(std::uint64_t pair) const { return neighbours ? 2 * pair : pair; }
    std::uint64_t second(std::uint64_t pair) const { return neighbours ? 2 * pair + 1 : pair + pairs; }
};

std::vector<LayerTurn> layer_turns(const RowMove& move) {
    std::vector<LayerTurn> turns;
    const float* next = move.turns.data();
    for (const std::int64_t pairs : move.pairs) {
        LayerTurn& turn = turns.emplace_back();
        turn.neighbours = pairs < 0;
        turn.pairs = static_cast<std::uint64_t>(turn.neighbours ? -pairs : pairs);
        turn.cos.assign(next, next + turn.pairs);
        turn.sin.assign(next + turn.pairs, next + 2 * turn.pairs);
        next += 2 * turn.pairs;
        for (std::uint64_t pair = 0; turn.neighbours && pair < turn.pairs; ++pair) {
            turn.row_cos.insert(turn.row_cos.end(), 2, turn.cos[pair]);
            turn.row_sin.insert(turn.row_sin.end(), {-turn.sin[pair], turn.sin[pair]});
        }
    }
    return turns;
}

// Pieces of one block that is written.
struct Target {
    std::vector<Piece> pieces;
    bool whole = false;  // all slots of it are written

    std::uint64_t block() const { return pieces.front().to_block; }
};

std::vector<Target> targets_of(const RowMove& move) {
    std::vector<Target> targets;
    std::uint64_t slots = 0;
    for (const Piece& piece : pieces_of(move)) {
        if (piece.to_slot == 0 || targets.empty()) {
            targets.emplace_back();
            slots = 0;
        }
        targets.back().pieces.push_back(piece);
        slots += piece.count;
        targets.back().whole = slots == move.shape.slots_per_block;
    }
    return targets;
}

// As memcpy, for runs that are too short for a call of it.
inline void copy_run(std::byte* to, const std::byte* from, std::uint64_t bytes) {
    constexpr std::uint64_t wide = 16, narrow = 8;
    if (bytes > 128) {
        std::memcpy(to, from, bytes);
    } else if (bytes >= wide) {
        for (std::uint64_t done = 0; done < bytes - wide; done += wide) {
            std::memcpy(to + done, from + done, wide);
            __asm__ volatile("" ::: "memory");  // a loop that the compiler does not make a memcpy of
        }
        std::memcpy(to + bytes - wide, from + bytes - wide, wide);
    } else if (bytes >= narrow) {
        std::uint64_t first, last;
        std::memcpy(&first, from, narrow);
        std::memcpy(&last, from + bytes - narrow, narrow);
        std::memcpy(to, &first, narrow);
        std::memcpy(to + bytes - narrow, &last, narrow);
    } else {
        for (std::uint64_t done = 0; done < bytes; done += 2) std::memcpy(to + done, from + done, 2);
    }
}

// Everything that is made on the heap is made before the first byte moves: a fault leaves without destructors.
class Mover {
public:
    explicit Mover(const RowMove& move)
        : move_(move), shape_(move.shape), item_(move.item_bytes()), kernels_(turn_kernels(move.element)), turns_(layer_turns(move)),
          key_(plane_of(move, move.key)), value_(plane_of(move, move.value)), targets_(targets_of(move)),
          scratch_(shape_.head_bytes + CACHE_LINE) {}

    void take() {
        for (std::uint64_t layer = move_.first_layer; layer < move_.end_layer; ++layer) {
            const LayerTurn& turn = turns_[layer - move_.first_layer];
            for (const Target& target : targets_) {
                if (shape_.kv_axis == 1) {
                    write(layer, target, &turn, true);
                } else {
                    write(layer, target, &turn, false);
                    write(shape_.layers + layer, target, nullptr, true);
                }
            }
        }
        drain_streams();
    }

private:
    // Keys where there is a turn, values where they are in this plane.
    void write(std::uint64_t plane, const Target& target, const LayerTurn* turn, bool values) {
        if (move_.into_object) {
            for (const Piece& piece : target.pieces) write_parts(plane, piece, turn, values);
            return;
        }
        std::byte* page = page_part(plane, target.block(), 0);
        const std::uint64_t shift = reinterpret_cast<std::uintptr_t>(page) | shape_.head_stride | shape_.slot_stride | shape_.head_bytes;
        const bool lines = shift % CACHE_LINE == 0;
        if (lines && in_runs_) {
            write_runs(plane, target, turn, values);
            return;
        }
        if (rows_apart_) {
            write_rows(plane, target, turn, values, lines);
            return;
        }
        for (const Piece& piece : target.pieces) write_parts(plane, piece, turn, values);
    }

    // Head by head, from where each element is to where it goes.
    void write_parts(std::uint64_t plane, const Piece& piece, const LayerTurn* turn, bool values) const {
        for (std::uint64_t head = 0; head < shape_.heads; ++head) {
            std::byte* part = move_.into_object ? object_part(plane, piece.to_block, head) : page_part(plane, piece.to_block, head);
            const std::byte* from = move_.into_object ? page_part(plane, piece.from_block, head) : object_part(plane, piece.from_block, head);
            if (turn != nullptr) turn_keys(*turn, part, from, piece);
            if (values) copy(value_, part, from, piece, 0);
        }
    }

    // Keys that have their slots side by side: each run of slots of all heads at once, so that the object is read in its own order.
    void write_runs(std::uint64_t plane, const Target& target, const LayerTurn* turn, bool values) const {
        std::byte* page = page_part(plane, target.block(), 0);
        if (turn != nullptr && target.whole) {
            write_keys(*turn, plane, page, target.pieces.front(), target.pieces.back(), true);
        } else if (turn != nullptr) {
            for (const Piece& piece : target.pieces) {
                if (piece.count * item_ >= RUN_BYTES) write_keys(*turn, plane, page, piece, piece, false);
                else write_parts(plane, piece, turn, false);
            }
        }
        if (!values) return;
        for (const Piece& piece : target.pieces) {
            const std::byte* from = object_part(plane, piece.from_block, 0);
            for (std::uint64_t slot = 0; slot < piece.count; ++slot) {
                const std::uint64_t source = value_.sources[piece.from_slot + slot], row = source / shape_.slot_bytes();
                const std::byte* next = from + (row + 1) * shape_.slot_bytes() + source % shape_.slot_bytes() * shape_.heads;
                streaming_(page + value_.targets[piece.to_slot + slot], from + source,
                           {.slots = 1, .heads = shape_.heads, .bytes = value_.elements * item_, .to_slot = 0, .to_head = shape_.head_stride,
                            .from_slot = 0, .from_head = shape_.head_bytes, .ahead = next});
            }
        }
    }

    // `piece` and, where a block is whole and comes from two, the one behind it.
    void write_keys(const LayerTurn& turn, std::uint64_t plane, std::byte* page, const Piece& piece, const Piece& behind, bool whole) const {
        const auto kernel = [whole](const RunKernels& kernels) { return whole ? kernels.stream : kernels.part; };
        const std::byte* from = object_part(plane, piece.from_block, 0) + piece.from_slot * item_;
        const std::byte* then = object_part(plane, behind.from_block, 0) + behind.from_slot * item_ - (behind.to_slot - piece.to_slot) * item_;
        std::byte* to = page + piece.to_slot * item_;
        const auto runs = [&](std::uint64_t a, std::uint64_t b, float cos, float sin) {
            return PairRuns{to + key_.targets[a], to + key_.targets[b], from + key_.sources[a], from + key_.sources[b], then + key_.sources[a],
                            then + key_.sources[b], (whole ? shape_.slots_per_block : piece.count) * item_, piece.count * item_, shape_.heads,
                            shape_.head_stride, shape_.head_bytes, shape_.slot_bytes(), cos, sin};
        };
        for (std::uint64_t pair = 0; pair < turn.pairs; ++pair) {
            kernel(kernels_.turned)(runs(turn.first(pair), turn.second(pair), turn.cos[pair], turn.sin[pair]));
        }
        for (std::uint64_t element = 2 * turn.pairs; element < key_.elements; element += 2) {
            kernel(kernels_.as_they_are)(runs(element, std::min(element + 1, key_.elements - 1), 1, 0));
        }
    }

    // Slots that have their own elements in their rows, in the order in which the object has them.
    void write_rows(std::uint64_t plane, const Target& target, const LayerTurn* turn, bool values, bool lines) {
        std::byte* page = page_part(plane, target.block(), 0);
        for (const Piece& piece : target.pieces) {
            for (std::uint64_t slot = 0; slot < piece.count; ++slot) {
                std::byte* to = page + (piece.to_slot + slot) * shape_.slot_stride;
                const std::byte* from = object_part(plane, piece.from_block, 0) + (piece.from_slot + slot) * shape_.slot_bytes();
                for (std::uint64_t head = 0; head < shape_.heads; ++head, to += shape_.head_stride, from += shape_.head_bytes) {
                    std::byte* row = lines ? scratch() : to;
                    if (turn != nullptr) write_row(*turn, row, from);
                    if (values) std::memcpy(row + value_.dense[0], from + value_.sources[0], value_.elements * item_);
                    if (lines) {
                        const Rows one{.slots = 1, .heads = 1, .bytes = shape_.head_bytes, .to_slot = 0, .to_head = 0, .from_slot = 0, .from_head = 0};
                        streaming_(to, row, one);
                    }
                }
            }
        }
    }

    void write_row(const LayerTurn& turn, std::byte* row, const std::byte* from) const {
        const std::uint64_t turned = 2 * turn.pairs * item_;
        if (turned != 0) {
            if (turn.neighbours) kernels_.neighbours({row, from, turn.pairs, turn.row_cos.data(), turn.row_sin.data()});
            else kernels_.halves({row, from, turn.pairs, turn.cos.data(), turn.sin.data()});
        }
        std::memcpy(row + turned, from + turned, key_.elements * item_ - turned);
    }

    // Whether K has its slots side by side and V those of an element, in pieces that are written past the caches.
    bool in_runs() const {
        const auto are_multiples = [](const Offsets& targets, std::uint64_t of) {
            return std::all_of(targets.begin(), targets.end(), [of](std::uint64_t target) { return target % of == 0; });
        };
        const std::uint64_t run = shape_.slots_per_block * item_, row = value_.elements * item_;
        if (kernels_.turned.stream == nullptr || key_.order != Order::columns || value_.order != Order::rows) return false;
        if (run % RUN_BYTES != 0 || row % CACHE_LINE != 0) return false;
        // A split is read on both sides of it: behind the last run something must follow.
        const std::uint64_t last = *std::max_element(key_.sources.begin(), key_.sources.end()) + (shape_.heads - 1) * shape_.head_bytes + run;
        const bool has_more = shape_.kv_axis == 2 || last + RUN_BYTES <= shape_.slots_per_block * shape_.slot_bytes();
        return has_more && are_multiples(key_.targets, RUN_BYTES) && are_multiples(value_.targets, CACHE_LINE);
    }

    // Whether slot s has its elements in row s: all of K from the row's beginning on, and V to its end.
    bool rows_apart() const {
        const auto in_order = [this](const Plane& plane, std::uint64_t first) {
            if (plane.order != Order::rows) return false;
            for (std::uint64_t slot = 0; slot < shape_.slots_per_block; ++slot) {
                if (plane.dense[slot] != slot * shape_.head_bytes + first) return false;
            }
            return true;
        };
        const std::uint64_t keys = key_.elements * item_, values = value_.elements * item_;
        if (shape_.kv_axis == 2) return in_order(key_, 0) && in_order(value_, 0) && keys == shape_.head_bytes && values == shape_.head_bytes;
        return in_order(key_, 0) && in_order(value_, keys) && keys + values == shape_.head_bytes;
    }

    std::byte* object_part(std::uint64_t plane, std::uint64_t block, std::uint64_t head) const {
        const std::uint64_t slot = plane * move_.object_slots + block * shape_.slots_per_block;
        return at(move_.object + slot * shape_.slot_bytes() + head * shape_.head_bytes);
    }

    std::byte* page_part(std::uint64_t plane, std::uint64_t block, std::uint64_t head) const {
        return at(move_.bases[plane] + block * shape_.block_stride + head * shape_.head_stride);
    }

    std::byte* scratch() {
        const auto address = reinterpret_cast<std::uintptr_t>(scratch_.data());
        return scratch_.data() + (CACHE_LINE - address % CACHE_LINE) % CACHE_LINE;
    }

    // Elements from `first` on, as they are.
    void copy(const Plane& plane, std::byte* target, const std::byte* source, const Piece& piece, std::uint64_t first) const {
        switch (plane.order) {
            case Order::rows:
                for (std::uint64_t slot = 0; slot < piece.count; ++slot) {
                    std::memcpy(target + plane.targets[piece.to_slot + slot] + first * item_,
                                source + plane.sources[piece.from_slot + slot] + first * item_, (plane.elements - first) * item_);
                }
                return;
            case Order::columns:
                for (std::uint64_t element = first; element < plane.elements; ++element) {
                    copy_run(target + plane.targets[element] + piece.to_slot * item_,
                             source + plane.sources[element] + piece.from_slot * item_, piece.count * item_);
                }
                return;
            case Order::any:
                for (std::uint64_t slot = 0; slot < piece.count; ++slot) {
                    const std::uint64_t* sources = plane.sources.data() + (piece.from_slot + slot) * plane.elements;
                    const std::uint64_t* targets = plane.targets.data() + (piece.to_slot + slot) * plane.elements;
                    for (std::uint64_t element = first; element < plane.elements; ++element) {
                        if (item_ == 2) std::memcpy(target + targets[element], source + sources[element], 2);
                        else std::memcpy(target + targets[element], source + sources[element], 4);
                    }
                }
        }
    }

    void turn_keys(const LayerTurn& turn, std::byte* target, const std::byte* source, const Piece& piece) const {
        if (turn.pairs != 0) {
            switch (key_.order) {
                case Order::rows: turn_by_slot(turn, target, source, piece); break;
                case Order::columns: turn_columns(turn, target, source, piece); break;
                case Order::any: turn_one_by_one(turn, target, source, piece); break;
            }
        }
        copy(key_, target, source, piece, 2 * turn.pairs);
    }

    void turn_by_slot(const LayerTurn& turn, std::byte* target, const std::byte* source, const Piece& piece) const {
        const auto kernel = turn.neighbours ? kernels_.neighbours : kernels_.halves;
        const float* cos = turn.neighbours ? turn.row_cos.data() : turn.cos.data();
        const float* sin = turn.neighbours ? turn.row_sin.data() : turn.sin.data();
        for (std::uint64_t slot = 0; slot < piece.count; ++slot) {
            kernel({target + key_.targets[piece.to_slot + slot], source + key_.sources[piece.from_slot + slot], turn.pairs,
                    cos, sin});
        }
    }

    void turn_columns(const LayerTurn& turn, std::byte* target, const std::byte* source, const Piece& piece) const {
        target += piece.to_slot * item_;
        source += piece.from_slot * item_;
        for (std::uint64_t pair = 0; pair < turn.pairs; ++pair) {
            const std::uint64_t a = turn.first(pair), b = turn.second(pair);
            kernels_.column({target + key_.targets[a], target + key_.targets[b], source + key_.sources[a], source + key_.sources[b],
                             piece.count, turn.cos[pair], turn.sin[pair]});
        }
    }

    void turn_one_by_one(const LayerTurn& turn, std::byte* target, const std::byte* source, const Piece& piece) const {
        for (std::uint64_t slot = 0; slot < piece.count; ++slot) {
            const std::uint64_t* sources = key_.sources.data() + (piece.from_slot + slot) * key_.elements;
            const std::uint64_t* targets = key_.targets.data() + (piece.to_slot + slot) * key_.elements;
            kernels_.places({target, source, targets, sources, turn.pairs, turn.neighbours, turn.cos.data(), turn.sin.data()});
        }
    }

    const RowMove& move_;
    const PageShape& shape_;
    const std::uint64_t item_;
    const TurnKernels kernels_;
    const std::vector<LayerTurn> turns_;
    const Plane key_;
    const Plane value_;
    const std::vector<Target> targets_;
    const bool in_runs_ = in_runs();
    const bool rows_apart_ = rows_apart();
    std::vector<std::byte> scratch_;
    const RowCopy streaming_ = streaming_copy();
};

void check_places(const Places& places, const PageShape& shape, std::uint64_t row, const std::string& name) {
    if (places.slots.size() != shape.slots_per_block || places.elements.empty() || places.elements.size() > row) {
        refuse(name + " has places for " + text(places.slots.size()) + " slots of " + text(places.elements.size()) + " elements, and a block has " +
               text(shape.slots_per_block) + " slots of " + text(row));
    }
    const std::uint64_t slot = *std::max_element(places.slots.begin(), places.slots.end());
    const std::uint64_t element = *std::max_element(places.elements.begin(), places.elements.end());
    if (plus(slot, element, "a place") >= times(shape.slots_per_block, row, "a block")) {
        refuse(name + " has the place " + text(slot + element) + ", and a head's part of a block has " + text(shape.slots_per_block * row));
    }
}

void check_turns(const RowMove& move) {
    const std::uint64_t layers = move.end_layer - move.first_layer;
    if (move.pairs.size() != layers) refuse("pairs must have one number for each of " + text(layers) + " layers, and has " + text(move.pairs.size()));
    std::uint64_t numbers = 0;
    for (const std::int64_t pairs : move.pairs) {
        const std::uint64_t count = pairs < 0 ? ~static_cast<std::uint64_t>(pairs) + 1 : static_cast<std::uint64_t>(pairs);
        if (count > move.key.elements.size() / 2) refuse("pairs has " + text(count) + ", and a head " + text(move.key.elements.size()) + " elements");
        numbers += 2 * count;
    }
    if (move.turns.size() != numbers) refuse("turns must have " + text(numbers) + " numbers, and has " + text(move.turns.size()));
}

void check_slots(const RowMove& move) {
    const std::uint64_t per_block = move.shape.slots_per_block;
    if (move.object_slots % per_block != 0) {
        refuse("object_slots is " + text(move.object_slots) + ", which is not whole blocks of " + text(per_block));
    }
    if (plus(move.first_slot, move.count, "the slots") > move.object_slots) {
        refuse("slots " + text(move.first_slot) + " to " + text(move.first_slot + move.count) + " are not within the " +
               text(move.object_slots) + " of the object");
    }
    const std::uint64_t there = times(move.blocks.size(), per_block, "the blocks");
    if (plus(move.first_page_slot, move.count, "the slots") > there) {
        refuse("slots " + text(move.first_page_slot) + " to " + text(move.first_page_slot + move.count) + " are not within the " + text(there) + " of the blocks");
    }
    for (std::size_t index = 0; index < move.blocks.size(); ++index) {
        const std::int64_t block = move.blocks[index];
        if (block < 0 || static_cast<std::uint64_t>(block) >= move.page_blocks) {
            refuse("blocks[" + text(index) + "] is " + std::to_string(block) + ", and there are " + text(move.page_blocks));
        }
    }
}

}  // namespace

std::uint64_t RowMove::bytes() const {
    return count * (end_layer - first_layer) * shape.heads * (key.elements.size() + value.elements.size()) * item_bytes();
}

void check(const RowMove& move) {
    const PageShape& shape = move.shape;
    if (shape.kv_axis > 2) refuse("kv_axis must be 1 or 2, and is " + text(shape.kv_axis));
    if (move.first_layer > move.end_layer || move.end_layer > shape.layers) {
        refuse("layers " + text(move.first_layer) + " to " + text(move.end_layer) + " are not within 0 to " + text(shape.layers));
    }
    const std::uint64_t planes = times(shape.kv_axis, shape.layers, "the layers");
    if (move.bases.size() != planes) refuse("bases must have kv_axis * layers = " + text(planes) + " addresses, and has " + text(move.bases.size()));
    if (shape.head_bytes % move.item_bytes() != 0) {
        refuse("head_bytes is " + text(shape.head_bytes) + ", which is not whole elements of " + text(move.item_bytes()));
    }
    const std::uint64_t row = shape.head_bytes / move.item_bytes();
    check_places(move.key, shape, row, "key");
    check_places(move.value, shape, row, "value");
    check_turns(move);
    check_slots(move);

    const std::uint64_t slot_bytes = times(shape.heads, shape.head_bytes, "a slot");
    const std::uint64_t object_bytes = times(times(move.object_slots, slot_bytes, "an object"), planes, "an object");
    check_addresses({move.object}, object_bytes, "object");
    std::uint64_t extent = times(move.page_blocks, shape.block_stride, "the last block");
    extent = plus(extent, times(shape.slots_per_block, shape.slot_stride, "a block"), "the last block");
    extent = plus(extent, times(shape.heads, shape.head_stride, "a slot of a block"), "the last block");
    extent = plus(extent, shape.head_bytes, "the last block");
    check_addresses(move.bases, extent, "bases");
}

bool run(const RowMove& move) {
    install_fault_guard();
    Mover mover(move);
    return run_guarded([](void* argument) { static_cast<Mover*>(argument)->take(); }, &mover);
}

}  // namespace lmcache
