#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "ductile/comm/arena_impl.h"

namespace ductile::comm {

// A message between two transports; records with a payload carry it right behind.
struct Record {
  enum Kind : uint32_t {
    eager,   // tag, payload: a whole message
    offer,   // tag, id, length; payload: its offset in the sender's region. It waits there
    accept,  // id: send it, in chunks; or with a payload, as in `posted`: put it there
    chunk,   // id, payload: the next bytes of it
    taken,   // id: the receiver has copied it out of the sender's region
    posted,  // tag, length, payload: the offset in the receiver's region where it is to be put
    placed,  // id of the offer, or 0 and the tag: it lies where the receiver has said
  };
  static constexpr uint64_t kNoOffset = ~uint64_t{0};

  uint32_t kind = eager;
  uint32_t payload = 0;  // bytes that follow
  uint64_t tag = 0;
  uint64_t id = 0;
  uint64_t length = 0;
};
static_assert(sizeof(Record) == 32);

// One direction between two ranks: a ring of bytes in the arena, written by one thread and read by
// another. Records start at multiples of 32 bytes, so that a header never wraps around.
class ShmRing {
 public:
  explicit ShmRing(std::byte* memory)
      : head_(reinterpret_cast<Head*>(memory)), data_(memory + sizeof(Head)) {}

  bool empty() const {
    return head_->written.load(std::memory_order_acquire) ==
           head_->read.load(std::memory_order_relaxed);
  }

  // Bytes of payload that a record written now may have; negative if not even its header fits.
  int64_t room() const {
    const uint64_t used = head_->written.load(std::memory_order_relaxed) -
                          head_->read.load(std::memory_order_acquire);
    return static_cast<int64_t>(kRingCapacity - used) - static_cast<int64_t>(sizeof(Record));
  }

  void write(Record record, std::span<const std::byte> payload) {
    const uint64_t at = head_->written.load(std::memory_order_relaxed);
    record.payload = static_cast<uint32_t>(payload.size());
    std::memcpy(data_ + at % kRingCapacity, &record, sizeof record);
    copy_in(at + sizeof record, payload);
    head_->written.store(at + sizeof record + padded(payload.size()), std::memory_order_seq_cst);
  }

  // The header of the next record; not empty().
  Record front() const {
    Record record;
    const uint64_t at = head_->read.load(std::memory_order_relaxed);
    std::memcpy(&record, data_ + at % kRingCapacity, sizeof record);
    return record;
  }
  void copy_payload(std::byte* to, size_t bytes) const {
    const uint64_t at = head_->read.load(std::memory_order_relaxed) + sizeof(Record);
    const size_t start = at % kRingCapacity, first = std::min(bytes, kRingCapacity - start);
    if (first > 0) std::memcpy(to, data_ + start, first);
    if (bytes > first) std::memcpy(to + first, data_, bytes - first);
  }
  // Frees the next record's space. True if the writer waits for it.
  bool pop(const Record& record) {
    const uint64_t at = head_->read.load(std::memory_order_relaxed);
    head_->read.store(at + sizeof record + padded(record.payload), std::memory_order_seq_cst);
    return head_->starved.load(std::memory_order_seq_cst) != 0 && head_->starved.exchange(0) != 0;
  }

  // The writer wants to be rung when there is space; look at room() again afterwards.
  void starve() { head_->starved.store(1, std::memory_order_seq_cst); }

 private:
  struct Head {
    alignas(64) std::atomic<uint64_t> written;
    alignas(64) std::atomic<uint64_t> read;
    alignas(64) std::atomic<uint32_t> starved;
  };
  static_assert(sizeof(Head) + kRingCapacity <= kRingBytes);

  static size_t padded(size_t bytes) { return (bytes + 31) / 32 * 32; }
  void copy_in(uint64_t at, std::span<const std::byte> bytes) {
    const size_t start = at % kRingCapacity, first = std::min(bytes.size(), kRingCapacity - start);
    if (first > 0) std::memcpy(data_ + start, bytes.data(), first);
    if (bytes.size() > first) std::memcpy(data_, bytes.data() + first, bytes.size() - first);
  }

  Head* head_;
  std::byte* data_;
};

}  // namespace ductile::comm
