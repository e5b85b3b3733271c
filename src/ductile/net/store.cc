#include "ductile/net/store.h"

#include <charconv>
#include <condition_variable>
#include <mutex>

#include "ductile/base/error.h"

namespace ductile::net {
namespace {

class MemoryStore final : public Store {
 public:
  void set(std::string_view key, std::string_view value, Deadline) override {
    const std::lock_guard lock(mutex_);
    table_.set(key, value);
    changed_.notify_all();
  }

  std::string get(std::string_view key, Deadline deadline) override {
    std::unique_lock lock(mutex_);
    wait_for(lock, key, deadline);
    return *table_.get(key);
  }

  int64_t add(std::string_view key, int64_t delta, Deadline) override {
    const std::lock_guard lock(mutex_);
    const int64_t sum = table_.add(key, delta);
    changed_.notify_all();
    return sum;
  }

  void wait(std::span<const std::string> keys, Deadline deadline) override {
    std::unique_lock lock(mutex_);
    for (const std::string& key : keys) wait_for(lock, key, deadline);
  }

 private:
  void wait_for(std::unique_lock<std::mutex>& lock, std::string_view key, Deadline deadline) {
    if (!changed_.wait_until(lock, deadline, [&] { return table_.has(key); })) {
      fail(ErrorCode::deadline, "nobody set '{}' in time", key);
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  StoreTable table_;
};

}  // namespace

std::unique_ptr<Store> make_memory_store() { return std::make_unique<MemoryStore>(); }

StoreTable::Value& StoreTable::place(std::string_view key, size_t value_bytes) {
  if (key.empty() || key.size() > Store::kMaxKey) {
    fail(ErrorCode::invalid_argument, "a store's key has 1 to {} bytes, not {}", Store::kMaxKey,
         key.size());
  }
  if (value_bytes > Store::kMaxValue) {
    fail(ErrorCode::invalid_argument, "'{}': a value of {} bytes; at most {} are kept", key,
         value_bytes, Store::kMaxValue);
  }
  const auto found = values_.find(key);
  const size_t old = found == values_.end() ? 0 : key.size() + found->second.text.size();
  const size_t total = bytes_ - old + key.size() + value_bytes;
  if (total > max_bytes_) {
    fail(ErrorCode::unavailable, "'{}': the store is full ({} bytes)", key, max_bytes_);
  }
  bytes_ = total;
  return found == values_.end() ? values_[std::string(key)] : found->second;
}

void StoreTable::set(std::string_view key, std::string_view value) {
  Value& to = place(key, value.size());
  to.text = value;
  to.counter = false;
}

int64_t StoreTable::add(std::string_view key, int64_t delta) {
  int64_t sum = 0;
  if (const auto found = values_.find(key); found != values_.end()) {
    const std::string& text = found->second.text;
    if (!found->second.counter) {
      fail(ErrorCode::invalid_argument, "'{}' holds a value, not a counter", key);
    }
    std::from_chars(text.data(), text.data() + text.size(), sum);
  }
  // Wraps around, as atomics do.
  sum = static_cast<int64_t>(static_cast<uint64_t>(sum) + static_cast<uint64_t>(delta));
  const std::string text = std::to_string(sum);
  Value& to = place(key, text.size());
  to.text = text;
  to.counter = true;
  return sum;
}

std::optional<std::string> StoreTable::get(std::string_view key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return std::nullopt;
  return found->second.text;
}

}  // namespace ductile::net
