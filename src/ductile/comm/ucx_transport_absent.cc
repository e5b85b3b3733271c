#include "ductile/base/error.h"
#include "ductile/comm/ucx_transport.h"

namespace ductile::comm {

bool have_ucx() { return false; }

std::unique_ptr<Transport> connect_ucx(const Group&, net::Store&, const net::Secret&,
                                       const UcxOptions&, net::Deadline) {
  fail(ErrorCode::unavailable,
       "this build has no UCX: install libucx-dev and build again, or use the tcp transport");
}

}  // namespace ductile::comm
