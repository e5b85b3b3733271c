#pragma once

#include <string_view>

// The constant parts of the page that report.cc puts together.
namespace ductile::sim::report {

extern const std::string_view kStyle;
extern const std::string_view kScript;

}  // namespace ductile::sim::report
