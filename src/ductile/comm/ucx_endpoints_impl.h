#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <ucp/api/ucp.h>

#include "ductile/comm/ucx_transport.h"

namespace ductile::comm {

// Throws unavailable for anything but UCS_OK.
void check_ucx(ucs_status_t status, const char* what);

// UCX's context, worker and endpoints, and nothing of ours but their lifetimes.
class UcxEndpoints {
 public:
  using OnError = std::function<void(int peer, ucs_status_t status)>;

  UcxEndpoints(const UcxOptions& options, int size, OnError on_error);
  ~UcxEndpoints();
  UcxEndpoints(const UcxEndpoints&) = delete;
  UcxEndpoints& operator=(const UcxEndpoints&) = delete;

  ucp_worker_h worker() const { return worker_; }
  ucp_ep_h endpoint(int peer) const { return endpoints_[static_cast<size_t>(peer)].handle; }
  int event_fd() const { return event_fd_; }

  std::vector<std::byte> address() const;
  void connect(int peer, std::span<const std::byte> address);
  void handle(unsigned id, ucp_am_recv_callback_t callback, void* argument);

  void progress_all();
  // True: may sleep on event_fd().
  bool arm() { return ucp_worker_arm(worker_) == UCS_OK; }

  // Waits, at most so long, until what was sent has left this process.
  void flush(std::chrono::milliseconds patience);
  // Ends every operation; their callbacks run in here, or never.
  void close(std::chrono::milliseconds patience);

 private:
  struct Endpoint {
    ucp_ep_h handle = nullptr;
    int peer = -1;
    UcxEndpoints* owner = nullptr;
  };
  void finish(std::vector<void*>& requests, std::chrono::milliseconds patience);

  OnError on_error_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1;
  std::vector<Endpoint> endpoints_;
};

}  // namespace ductile::comm
