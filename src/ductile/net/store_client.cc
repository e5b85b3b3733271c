#include <algorithm>
#include <charconv>
#include <mutex>
#include <utility>

#include "ductile/base/error.h"
#include "ductile/net/channel.h"
#include "ductile/net/store_protocol_impl.h"
#include "ductile/net/store_server.h"

namespace ductile::net {
namespace {

class StoreClient final : public Store {
 public:
  StoreClient(Admission admission, Address server)
      : server_(std::move(server)),
        channel_(std::move(admission.socket), *std::move(admission.seal), kStoreMaxFrame) {}

  void set(std::string_view key, std::string_view value, Deadline deadline) override {
    check_sizes(key, value.size());
    std::vector<std::byte> fields;
    append_text(fields, key);
    append_text(fields, value);
    call(StoreRequest::set, fields, key, deadline);
  }

  std::string get(std::string_view key, Deadline deadline) override {
    check_sizes(key, 0);
    const std::string keys[] = {std::string(key)};
    return call(StoreRequest::get, wait_fields(keys, deadline), key, deadline);
  }

  int64_t add(std::string_view key, int64_t delta, Deadline deadline) override {
    check_sizes(key, 0);
    std::vector<std::byte> fields;
    append_text(fields, key);
    append_number(fields, delta);
    const std::string text = call(StoreRequest::add, fields, key, deadline);
    int64_t sum = 0;
    std::from_chars(text.data(), text.data() + text.size(), sum);
    return sum;
  }

  void wait(std::span<const std::string> keys, Deadline deadline) override {
    // In parts that fit a frame, however many there are.
    for (size_t i = 0; i < keys.size(); i += 1000) {
      const auto part = keys.subspan(i, std::min<size_t>(1000, keys.size() - i));
      for (const std::string& key : part) check_sizes(key, 0);
      call(StoreRequest::wait, wait_fields(part, deadline), part.front(), deadline);
    }
  }

 private:
  static void check_sizes(std::string_view key, size_t value) {
    if (key.empty() || key.size() > kMaxKey || value > kMaxValue) {
      fail(ErrorCode::invalid_argument,
           "a store takes keys of 1 to {} bytes and values of at most {}, not {} and {}", kMaxKey,
           kMaxValue, key.size(), value);
    }
  }

  static std::vector<std::byte> wait_fields(std::span<const std::string> keys, Deadline deadline) {
    std::vector<std::byte> fields;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    append_number(fields, static_cast<uint64_t>(std::max<int64_t>(left, 0)));
    append_number(fields, static_cast<uint32_t>(keys.size()));
    for (const std::string& key : keys) append_text(fields, key);
    return fields;
  }

  std::string call(StoreRequest kind, std::span<const std::byte> fields, std::string_view key,
                   Deadline deadline) {
    const std::lock_guard lock(mutex_);
    if (broken_)
      fail(ErrorCode::unavailable, "{}: the connection to the store broke", server_.to_string());
    const uint32_t id = ++id_;
    std::vector<std::byte> request;
    append_number(request, static_cast<uint8_t>(kind));
    append_number(request, id);
    append_bytes(request, fields);
    try {
      sending_ = true;
      channel_.send(request, deadline);
      sending_ = false;
      while (true) {
        const std::vector<std::byte> frame = channel_.receive(deadline);
        FieldReader answer(frame);
        if (answer.number<uint32_t>() != id) continue;  // of a call that gave up
        const int status = answer.number<uint8_t>();
        std::string text = answer.text();
        if (status == 0) return text;
        throw Error(static_cast<ErrorCode>(status - 1), text);
      }
    } catch (const Error& error) {
      if (error.code() == ErrorCode::deadline) {
        broken_ = sending_;  // half a frame is out
        fail(ErrorCode::deadline, "nobody set '{}' in time (store at {})", key,
             server_.to_string());
      }
      if (error.code() != ErrorCode::peer_lost && error.code() != ErrorCode::data_loss) throw;
      broken_ = true;
      fail(ErrorCode::unavailable, "the store is gone: {}; is the controller running?",
           error.what());
    }
  }

  Address server_;
  std::mutex mutex_;
  Channel channel_;
  uint32_t id_ = 0;
  bool sending_ = false;
  bool broken_ = false;
};

}  // namespace

std::unique_ptr<Store> connect_store(const Address& server, const Secret& secret,
                                     const std::string& job, Deadline deadline,
                                     const StoreClientOptions& options) {
  const Identity self{"store", job, 0, -1, 0};
  DialOptions dialing;
  dialing.socket = options.socket;
  return std::make_unique<StoreClient>(dial(server, secret, self, self, dialing, deadline), server);
}

}  // namespace ductile::net
