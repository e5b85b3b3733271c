#pragma once

#include <string>
#include <string_view>

namespace ductile::run {

// Text as it may stand in HTML, SVG and XML: between tags and inside quoted attributes. Invalid
// UTF-8 and control characters become U+FFFD.
std::string escape_html(std::string_view text);

}  // namespace ductile::run
