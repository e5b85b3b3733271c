#include "ductile/cli/console.h"

namespace ductile::cli {

void Console::error(std::string_view text) {
  err_ << (color ? "\033[31mductile:\033[0m " : "ductile: ") << text << std::endl;
}

}  // namespace ductile::cli
