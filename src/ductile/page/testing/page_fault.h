#pragma once

#include <string>

#include "ductile/base/json.h"
#include "ductile/base/json_value.h"

// For tests of pages.
namespace ductile::page {

// What must never become markup, in whatever field of the data it stands.
inline const std::string kEvil =
    "</script><script>alert(1)</script>\"'><img src=x onerror=1>&<!--\u2028\u202e]]>${1}`\\";

// The data block, as the scripts read it.
inline nlohmann::json data_of(const std::string& html) {
  const std::string open = "<script type=\"application/json\" id=\"data\">";
  const size_t begin = html.find(open) + open.size();
  return parse_json(html.substr(begin, html.find("</script>", begin) - begin));
}

// Why the page is not self-contained or holds markup of its data's making; "" where all is well.
inline std::string page_fault(std::string html) {
  for (const std::string allowed :
       {"http://www.w3.org/2000/svg", "url(#", "&lt;img src=", "\\u003cimg src="}) {
    for (size_t at; (at = html.find(allowed)) != std::string::npos;) html.erase(at, allowed.size());
  }
  for (const char* bad :
       {"http:", "https:", "src=", "href=", "@import", "url(", "fetch(", "XMLHttpRequest", "<link",
        "<iframe", "<img", "<object", "<script>alert", "innerHTML", "outerHTML", "<!--"}) {
    if (html.find(bad) != std::string::npos) return std::string("holds ") + bad;
  }
  // The data and the scripts, each closed once; a page may have neither.
  const auto count = [&](std::string_view what) {
    size_t n = 0;
    for (size_t at = 0; (at = html.find(what, at)) != std::string::npos; ++at) ++n;
    return n;
  };
  const size_t scripts = count("<script");
  if (scripts != 0 && scripts != 2) return "does not hold two scripts";
  return count("</script>") == scripts && count("</style>") == 1 ? "" : "unbalanced tags";
}

}  // namespace ductile::page
