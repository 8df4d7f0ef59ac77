// event_file.cpp - see event_file.h. Field numbers are those of the .proto files.
#include "files/event_file.h"

#include <cstring>

#include "files/crc.h"

namespace {
// A protocol buffer message under construction.
struct Message {
    std::string bytes;
    void varint(uint64_t x) {
        for (; x >= 0x80; x >>= 7) bytes += char(x | 0x80);
        bytes += char(x);
    }
    void key(int field, int wire_type) { varint(uint64_t(field << 3 | wire_type)); }
    template <class N> void little_endian(N x) {
        char raw[sizeof x];
        memcpy(raw, &x, sizeof x);
        bytes.append(raw, sizeof x);
    }
    void integer(int field, int64_t x) {
        key(field, 0);
        varint(uint64_t(x));
    }
    void real(int field, double x) {
        key(field, 1);
        little_endian(x);
    }
    void single(int field, float x) {
        key(field, 5);
        little_endian(x);
    }
    void text(int field, const std::string& x) {
        key(field, 2);
        varint(x.size());
        bytes += x;
    }
    void message(int field, const Message& x) { text(field, x.bytes); }
};

uint32_t masked_crc(const std::string& bytes) {
    const uint32_t crc = crc32c(0, bytes.data(), int64_t(bytes.size()));
    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

Message event(double time, int64_t step) {
    Message e;
    e.real(1, time);                 // wall_time
    if (step) e.integer(2, step);    // step; proto3 leaves out a 0
    return e;
}
Message text_value(const EventText& t) {
    Message plugin, metadata, tensor, value;
    plugin.text(1, "text");         // plugin_name
    metadata.message(1, plugin);    // plugin_data
    metadata.integer(4, 2);         // data_class: DATA_CLASS_TENSOR
    tensor.integer(1, 7);           // dtype: DT_STRING
    tensor.message(2, {});          // tensor_shape: a scalar
    tensor.text(8, t.text);         // string_val
    value.text(1, t.tag);
    value.message(8, tensor);
    value.message(9, metadata);
    return value;
}
// A record: length, masked CRC-32C of the length, message, masked CRC-32C of the message.
std::string event_record(const std::string& message) {
    Message length, record;
    length.little_endian(uint64_t(message.size()));
    record.bytes = length.bytes;
    record.little_endian(masked_crc(length.bytes));
    record.bytes += message;
    record.little_endian(masked_crc(message));
    return record.bytes;
}
}    // namespace

std::string event_file_version(double time) {
    Message e = event(time, 0);
    e.text(3, "brain.Event:2");    // file_version
    return event_record(e.bytes);
}
std::string event_restart(double time, int64_t step) {
    Message e = event(time, step), session;
    session.integer(1, 1);    // status: START
    e.message(7, session);    // session_log
    return event_record(e.bytes);
}
std::string event_summary(double time, int64_t step, const std::vector<EventScalar>& scalars,
                          const std::vector<EventText>& texts) {
    Message e = event(time, step), summary;
    for (const EventScalar& s : scalars) {
        Message value;
        value.text(1, s.tag);
        value.single(2, s.value);    // simple_value
        summary.message(1, value);
    }
    for (const EventText& t : texts) summary.message(1, text_value(t));
    e.message(5, summary);
    return event_record(e.bytes);
}
