// The property lists of stored records as columns: `reference.property_columns`.

#pragma once

#include <algorithm>

#include "growing.hpp"
#include "property_list.hpp"

namespace txbroker {

// A bit for each row, lowest first; bits behind the last row are 0.
struct Bits {
    static void pad(Growing& bits, size_t rows) {
        size_t size = (rows + 7) / 8;
        if (size <= bits.used) return;
        std::memset(bits.reserve(size - bits.used), 0, size - bits.used);
        bits.used = size;
    }

    static void set(Growing& bits, size_t row) { bits.begin()[row / 8] |= char(1 << row % 8); }
};

template <typename Number> struct OptionalNumbers {
    Growing valid, values;

    void pad(size_t before, size_t rows) {
        Bits::pad(valid, rows);
        std::fill_n(values.reserve_numbers<Number>(rows - before), rows - before, Number(0));
        values.used = rows * sizeof(Number);
    }

    void set(size_t row, Number value) {
        Bits::set(valid, row);
        reinterpret_cast<Number*>(values.begin())[row] = value;
    }
};

// The end of something for each row.
inline void put_ends(Growing& ends, size_t count, size_t end) {
    std::fill_n(ends.reserve_numbers<int32_t>(count), count, int32_t(end));
    ends.used += count * sizeof(int32_t);
}

struct Texts {
    Growing ends, data;

    void put(const Byte* text, size_t size) {
        if (size) std::memcpy(data.reserve(size), text, size);
        data.used += size;
        put_ends(ends, 1, data.used);
    }
};

struct OptionalTexts {
    Growing valid;
    Texts texts;

    void pad(size_t before, size_t rows) {
        Bits::pad(valid, rows);
        put_ends(texts.ends, rows - before, texts.data.used);
    }

    // The last row's text.
    void set(size_t row, const Byte* text, size_t size) {
        Bits::set(valid, row);
        texts.ends.used -= sizeof(int32_t);
        texts.put(text, size);
    }
};

// How many user properties the rows have up to each.
struct OptionalPairs {
    Growing valid, ends;

    void pad(size_t before, size_t rows, size_t pairs) {
        Bits::pad(valid, rows);
        put_ends(ends, rows - before, pairs);
    }

    void set(size_t row, size_t pairs) {
        Bits::set(valid, row);
        ends.used -= sizeof(int32_t);
        put_ends(ends, 1, pairs);
    }
};

// Empty until a record has properties: others cost nothing.
class PropertyData {
    size_t pairs_ = 0;

public:
    size_t rows = 0;
    OptionalNumbers<int64_t> expiry;
    OptionalNumbers<int8_t> payload_format;
    OptionalTexts content_type, response_topic, correlation_data;
    OptionalPairs user_properties;
    Texts names, values;

    void clear() {
        for (Growing* column :
             {&expiry.valid, &expiry.values, &payload_format.valid, &payload_format.values,
              &user_properties.valid, &user_properties.ends, &names.ends, &names.data,
              &values.ends, &values.data})
            column->used = 0;
        for (OptionalTexts* column : {&content_type, &response_topic, &correlation_data})
            column->valid.used = column->texts.ends.used = column->texts.data.used = 0;
        rows = pairs_ = 0;
    }

    // Rows without properties, up to so many rows.
    void pad(size_t to) {
        if (to <= rows) return;
        if (!rows) {
            for (Texts* texts : {&content_type.texts, &response_topic.texts, &correlation_data.texts,
                                 &names, &values})
                put_ends(texts->ends, 1, 0);
            put_ends(user_properties.ends, 1, 0);
        }
        expiry.pad(rows, to);
        payload_format.pad(rows, to);
        for (OptionalTexts* column : {&content_type, &response_topic, &correlation_data})
            column->pad(rows, to);
        user_properties.pad(rows, to, pairs_);
        rows = to;
    }

    // The plain properties of a row behind all others.
    void add(size_t row, const Byte* at, size_t size) {
        pad(row + 1);
        const Byte* const end = at + size;
        while (at < end) {
            switch (*at++) {
            case 0x01: payload_format.set(row, int8_t(*at++)); break;
            case 0x02:
                expiry.set(row, int64_t(at[0]) << 24 | at[1] << 16 | at[2] << 8 | at[3]);
                at += 4;
                break;
            case 0x03: take(content_type, row, at); break;
            case 0x08: take(response_topic, row, at); break;
            case 0x09: take(correlation_data, row, at); break;
            default:
                take(names, at);
                take(values, at);
                user_properties.set(row, ++pairs_);
            }
        }
    }

private:
    static const Byte* pass(const Byte*& at, size_t& size) {
        const Byte* text = at + 2;
        size = size_t(at[0]) << 8 | at[1];
        at = text + size;
        return text;
    }

    static void take(OptionalTexts& column, size_t row, const Byte*& at) {
        size_t size;
        const Byte* text = pass(at, size);
        column.set(row, text, size);
    }

    static void take(Texts& column, const Byte*& at) {
        size_t size;
        const Byte* text = pass(at, size);
        column.put(text, size);
    }
};

}  // namespace txbroker
