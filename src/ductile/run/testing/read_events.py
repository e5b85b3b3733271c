"""Reads TensorBoard event files with nothing but the standard library, and checks every checksum.

Prints one JSON object a record; the tests compare what Ductile wrote with it.
"""
import json
import struct
import sys


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    at = 0
    while at < len(data):
        head = data[at:at + 8]
        (length,) = struct.unpack("<Q", head)
        assert struct.unpack_from("<I", data, at + 8)[0] == masked(head), "checksum of a length"
        body = data[at + 12:at + 12 + length]
        assert len(body) == length, "torn record"
        assert struct.unpack_from("<I", data, at + 12 + length)[0] == masked(body), "checksum"
        yield body
        at += 16 + length


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def fields(data):
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 1:
            value, at = struct.unpack_from("<d", data, at)[0], at + 8
        elif kind == 5:
            value, at = struct.unpack_from("<f", data, at)[0], at + 4
        else:
            assert kind == 2, kind
            length, at = varint(data, at)
            value, at = data[at:at + length], at + length
        yield key >> 3, value


def event(data):
    out = {}
    for field, value in fields(data):
        if field == 1:
            out["wall"] = value
        elif field == 2:
            out["step"] = value
        elif field == 3:
            out["version"] = value.decode()
        elif field == 7:
            out["session"] = dict(fields(value))[1]
        elif field == 5:
            for _, v in fields(value):
                parts = dict(fields(v))
                tag = parts[1].decode()
                if 8 in parts:
                    out.setdefault("texts", {})[tag] = dict(fields(parts[8]))[8].decode()
                else:
                    out.setdefault("values", {})[tag] = repr(parts[2])
    return out


with open(sys.argv[1], "rb") as file:
    for record in records(file.read()):
        print(json.dumps(event(record)))
