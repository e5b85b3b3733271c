#include "ductile/cli/version.h"

namespace ductile::cli {

std::string_view version() { return DUCTILE_VERSION; }

}  // namespace ductile::cli
