#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ductile/net/socket.h"

namespace ductile::net {

// A key-value store in which the processes of a job find each other. Values are byte strings.
// Every implementation may be used by several threads at once.
//
// Errors: deadline, naming the key; unavailable, if the store cannot be reached (any more) or is
// full; invalid_argument for keys and values beyond the limits below, and for add() on a value that
// set() wrote.
class Store {
 public:
  static constexpr size_t kMaxKey = 256;
  static constexpr size_t kMaxValue = 1 << 20;

  virtual ~Store() = default;

  virtual void set(std::string_view key, std::string_view value, Deadline deadline) = 0;
  // Waits until the key exists.
  virtual std::string get(std::string_view key, Deadline deadline) = 0;
  // Adds to a counter, which begins at 0; returns the sum. get() shows it as decimal text.
  virtual int64_t add(std::string_view key, int64_t delta, Deadline deadline) = 0;
  // Waits until all keys exist.
  virtual void wait(std::span<const std::string> keys, Deadline deadline) = 0;
};

// A store in the memory of this process.
std::unique_ptr<Store> make_memory_store();

// The table behind the implementations; no waiting, no locks.
class StoreTable {
 public:
  explicit StoreTable(size_t max_bytes = 64 << 20) : max_bytes_(max_bytes) {}

  void set(std::string_view key, std::string_view value);
  int64_t add(std::string_view key, int64_t delta);
  std::optional<std::string> get(std::string_view key) const;
  bool has(std::string_view key) const { return values_.contains(key); }

 private:
  struct Value {
    std::string text;
    bool counter = false;
  };
  Value& place(std::string_view key, size_t value_bytes);

  std::map<std::string, Value, std::less<>> values_;
  size_t max_bytes_;
  size_t bytes_ = 0;
};

}  // namespace ductile::net
