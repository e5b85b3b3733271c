#include "ductile/comm/testing/ucx_imposter.h"

#include <array>
#include <cstring>

#include "ductile/comm/ucx_endpoints_impl.h"

namespace ductile::comm {
namespace {

class Imposter final : public UcxImposter {
 public:
  explicit Imposter(std::span<const std::byte> frame)
      : ucx_(options(), 2, [](int, ucs_status_t) {}) {
    std::memcpy(&token_, frame.data(), sizeof token_);
    // UCX 1.13 crashes on a message to a worker that has no handler at all.
    for (unsigned id = 1; id <= 3; ++id) {
      ucx_.handle(
          id,
          [](void*, const void*, size_t, void*, size_t, const ucp_am_recv_param_t*) {
            return UCS_OK;
          },
          nullptr);
    }
    address = ucx_.address();
    ucx_.connect(0, frame.subspan(sizeof token_));
  }

  void send(unsigned id, Tag tag, std::span<const std::byte> bytes, bool with_token) override {
    // UcxTransport's header: token, tag, length, source.
    const std::array<uint64_t, 4> header{with_token ? token_ : token_ + 1, tag, bytes.size(), 1};
    ucp_request_param_t params{};
    void* request = ucp_am_send_nbx(ucx_.endpoint(0), id, header.data(), sizeof header,
                                    bytes.data(), bytes.size(), &params);
    while (request != nullptr && ucp_request_check_status(request) == UCS_INPROGRESS) progress();
    if (request != nullptr) ucp_request_free(request);
  }

  void progress() override { ucx_.progress_all(); }

 private:
  static UcxOptions options() {
    UcxOptions o;
    o.tls = "tcp";
    o.net_devices = "lo";
    return o;
  }

  UcxEndpoints ucx_;
  uint64_t token_ = 0;
};

}  // namespace

std::unique_ptr<UcxImposter> make_ucx_imposter(std::span<const std::byte> frame) {
  return std::make_unique<Imposter>(frame);
}

}  // namespace ductile::comm
