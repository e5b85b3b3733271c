#include <utility>

#include "ductile/base/error.h"
#include "ductile/comm/ucx_endpoints_impl.h"

namespace ductile::comm {
namespace {

using Clock = std::chrono::steady_clock;

void modify(ucp_config_t* config, const char* name, const std::string& value) {
  if (value.empty()) return;
  const ucs_status_t status = ucp_config_modify(config, name, value.c_str());
  if (status != UCS_OK) {
    ucp_config_release(config);
    fail(ErrorCode::invalid_argument, "UCX refuses UCX_{}={}: {}", name, value,
         ucs_status_string(status));
  }
}

}  // namespace

void check_ucx(ucs_status_t status, const char* what) {
  if (status != UCS_OK) {
    fail(ErrorCode::unavailable, "UCX: cannot {}: {}; 'ucx_info -d' shows what this host has", what,
         ucs_status_string(status));
  }
}

UcxEndpoints::UcxEndpoints(const UcxOptions& options, int size, OnError on_error)
    : on_error_(std::move(on_error)), endpoints_(static_cast<size_t>(size)) {
  ucp_config_t* config = nullptr;
  check_ucx(ucp_config_read(nullptr, nullptr, &config), "read its configuration");
  modify(config, "TLS", options.tls);
  modify(config, "NET_DEVICES", options.net_devices);
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.estimated_num_eps = static_cast<size_t>(size);
  const ucs_status_t status = ucp_init(&params, config, &context_);
  ucp_config_release(config);
  check_ucx(status, "start");
  try {
    ucp_worker_params_t worker_params{};
    worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker_params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
    check_ucx(ucp_worker_create(context_, &worker_params, &worker_), "make a worker");
    check_ucx(ucp_worker_get_efd(worker_, &event_fd_), "get its event descriptor");
  } catch (...) {
    if (worker_ != nullptr) ucp_worker_destroy(worker_);
    ucp_cleanup(context_);
    throw;
  }
}

UcxEndpoints::~UcxEndpoints() {
  close(std::chrono::milliseconds(100));
  ucp_worker_destroy(worker_);
  ucp_cleanup(context_);
}

std::vector<std::byte> UcxEndpoints::address() const {
  ucp_address_t* address = nullptr;
  size_t size = 0;
  check_ucx(ucp_worker_get_address(worker_, &address, &size), "tell the worker's address");
  const auto* bytes = reinterpret_cast<const std::byte*>(address);
  std::vector<std::byte> copy(bytes, bytes + size);
  ucp_worker_release_address(worker_, address);
  return copy;
}

void UcxEndpoints::connect(int peer, std::span<const std::byte> address) {
  Endpoint& endpoint = endpoints_[static_cast<size_t>(peer)];
  endpoint.peer = peer;
  endpoint.owner = this;
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.arg = &endpoint;
  params.err_handler.cb = [](void* argument, ucp_ep_h, ucs_status_t status) {
    const auto* failed = static_cast<Endpoint*>(argument);
    failed->owner->on_error_(failed->peer, status);
  };
  check_ucx(ucp_ep_create(worker_, &params, &endpoint.handle), "connect to a peer");
}

void UcxEndpoints::handle(unsigned id, ucp_am_recv_callback_t callback, void* argument) {
  ucp_am_handler_param_t params{};
  params.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG;
  params.id = id;
  params.cb = callback;
  params.arg = argument;
  check_ucx(ucp_worker_set_am_recv_handler(worker_, &params), "register a handler");
}

void UcxEndpoints::progress_all() {
  while (ucp_worker_progress(worker_) != 0) {
  }
}

void UcxEndpoints::finish(std::vector<void*>& requests, std::chrono::milliseconds patience) {
  const auto deadline = Clock::now() + patience;
  for (void* request : requests) {
    if (request == nullptr || UCS_PTR_IS_ERR(request)) continue;
    while (ucp_request_check_status(request) == UCS_INPROGRESS && Clock::now() < deadline) {
      ucp_worker_progress(worker_);
    }
    ucp_request_free(request);
  }
}

void UcxEndpoints::flush(std::chrono::milliseconds patience) {
  ucp_request_param_t params{};
  std::vector<void*> requests{ucp_worker_flush_nbx(worker_, &params)};
  finish(requests, patience);
}

void UcxEndpoints::close(std::chrono::milliseconds patience) {
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  std::vector<void*> requests;
  for (Endpoint& endpoint : endpoints_) {
    if (endpoint.handle == nullptr) continue;
    requests.push_back(ucp_ep_close_nbx(std::exchange(endpoint.handle, nullptr), &params));
  }
  finish(requests, patience);
}

}  // namespace ductile::comm
