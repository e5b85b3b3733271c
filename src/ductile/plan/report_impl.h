#pragma once

#include <string>
#include <string_view>

#include "ductile/plan/report.h"

// What picture and page share.
namespace ductile::plan {

extern const std::string_view kSvgStyle;

// The elements inside <svg>; `height` is set to what they take.
std::string svg_body(const Report& report, double& height);

std::string escape(std::string_view text);  // for text and attributes of XML and HTML
std::string shorten(const std::string& text, size_t most);
std::string describe_ops(const graph::Graph& graph, const Stage& stage);  // escaped

}  // namespace ductile::plan
