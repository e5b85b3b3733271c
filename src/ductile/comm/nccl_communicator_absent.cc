#include "ductile/base/error.h"
#include "ductile/comm/nccl_communicator.h"

namespace ductile::comm {

bool have_nccl() { return false; }

std::string nccl_version() { return ""; }

std::unique_ptr<DeviceCommunicator> connect_nccl(const Group&, net::Store&, int, net::Deadline) {
  fail(ErrorCode::unavailable,
       "this build has no NCCL: install the CUDA toolkit and libnccl-dev, and build again with "
       "-DDUCTILE_NCCL=ON");
}

}  // namespace ductile::comm
