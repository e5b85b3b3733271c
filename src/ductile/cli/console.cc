#include "ductile/cli/console.h"

#include "ductile/page/terminal.h"

namespace ductile::cli {

void Console::error(std::string_view text) {
  err_ << (color ? "\033[31mductile:\033[0m " : "ductile: ") << page::without_controls(text)
       << std::endl;
}

void Console::line(std::string_view text) { err_ << page::without_controls(text) << std::endl; }

}  // namespace ductile::cli
