#pragma once

#include <string_view>

// The module's .css and .js files, as CMake embeds them. A server may also send them as files.
namespace ductile::page {

extern const std::string_view kColorsCss;  // the colours alone, light and dark: for stand-alone SVG
extern const std::string_view kThemeCss;   // everything else that pages look like
extern const std::string_view kTextJs;     // numbers as text
extern const std::string_view kAxesJs;     // ticks and scales
extern const std::string_view kChartsJs;   // curves, bars, timelines

}  // namespace ductile::page
