#include "ductile/comm/inproc.h"

#include "ductile/comm/testing/split_conformance.h"
#include "ductile/comm/testing/transport_conformance.h"

namespace ductile::comm {
namespace {

TransportMaker maker(const char* name, size_t eager_bytes) {
  return {name, [eager_bytes](int size) {
            return TransportSet{make_inproc_transports(size, {eager_bytes}), nullptr};
          }};
}

INSTANTIATE_TEST_SUITE_P(Inproc, TransportConformance,
                         ::testing::Values(maker("eager", 1 << 16), maker("rendezvous", 0)),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Inproc, SplitConformance,
                         ::testing::Values(maker("eager", 1 << 16), maker("rendezvous", 0)),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ductile::comm
