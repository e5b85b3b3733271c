#pragma once

#include <memory>
#include <optional>
#include <string>

#include "ductile/net/gate.h"
#include "ductile/net/loop.h"
#include "ductile/net/store.h"

namespace ductile::net {

struct StoreServerOptions {
  GateOptions gate;
  size_t max_bytes = 64 << 20;  // of all keys and values
  size_t max_unsent = 8 << 20;  // answers that a client does not take; it is then dropped
  int max_clients = 4096;
};

// Serves a Store to the authenticated processes of a job, of any generation, in a loop. Lives as
// long as the object; clients then see `unavailable`.
class StoreService {
 public:
  StoreService(Loop& loop, const Address& at, const Secret& secret, const std::string& job,
               StoreServerOptions options = {}, OnRefusal on_refusal = {});
  ~StoreService();

  Address address() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The same on a thread of its own, which calls on_refusal.
class StoreServer {
 public:
  StoreServer(const Address& at, const Secret& secret, const std::string& job,
              StoreServerOptions options = {}, OnRefusal on_refusal = {});
  ~StoreServer();

  Address address() const { return address_; }

 private:
  LoopThread thread_;
  std::optional<StoreService> service_;  // the thread's
  Address address_;
};

struct StoreClientOptions {
  SocketOptions socket;
};

// A Store at `server`. It connects and authenticates by `deadline`. Calls of several threads wait
// for each other, so a thread that waits long in get() should have a client of its own. A client
// whose connection broke is finished.
std::unique_ptr<Store> connect_store(const Address& server, const Secret& secret,
                                     const std::string& job, Deadline deadline,
                                     const StoreClientOptions& options = {});

}  // namespace ductile::net
