#include "ductile/comm/testing/ucx_imposter.h"

namespace ductile::comm {

std::unique_ptr<UcxImposter> make_ucx_imposter(std::span<const std::byte>) { return nullptr; }

}  // namespace ductile::comm
