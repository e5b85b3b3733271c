#include "ductile/page/html.h"

#include <algorithm>

#include <fmt/format.h>

#include "ductile/base/text.h"
#include "ductile/page/assets.h"

namespace ductile::page {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

std::string attribute(std::string_view name, std::string_view value) {
  return value.empty() ? "" : fmt::format(" {}=\"{}\"", name, escape_html(value));
}

std::string header_html(const Page& page) {
  std::string out = fmt::format(
      "<header><div class=\"eyebrow\">{}</div><div class=\"title\"><h1>{}</h1>",
      escape_html(page.kind), escape_html(page.heading.empty() ? page.title : page.heading));
  if (!page.status.empty())
    out += fmt::format("<span class=\"status {}\">{}</span>", page.tone, escape_html(page.status));
  out += "</div>";
  for (const std::string& line : page.about) out += fmt::format("<p class=\"about\">{}</p>", line);
  return out + "</header>\n";
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  out.reserve(text.size() + text.size() / 8);
  for (size_t i = 0; i < text.size();) {
    const size_t n = utf8_length(text, i);
    const char c = text[i];
    if (n == 0 || (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7F) {
      out += kReplacement;
      i += 1;
      continue;
    }
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += text.substr(i, n);
    }
    i += n;
  }
  return out;
}

std::string script_json(std::string_view json) {
  std::string out;
  out.reserve(json.size());
  for (const char c : json) {
    if (c == '<') {
      out += "\\u003c";
    } else if (c == '>') {
      out += "\\u003e";
    } else if (c == '&') {
      out += "\\u0026";
    } else {
      out += c;
    }
  }
  return out;
}

std::string to_html(const Page& page) {
  std::string out =
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n";
  out +=
      fmt::format("<title>{} \u00b7 {}</title>\n", escape_html(page.title), escape_html(page.kind));
  out += fmt::format("<style>\n{}{}{}</style>\n</head>\n<body>\n<main>\n", kColorsCss, kThemeCss,
                     page.style);
  out += header_html(page) + page.body;
  if (!page.footer.empty()) out += fmt::format("<footer>{}</footer>\n", escape_html(page.footer));
  out += "</main>\n";
  if (!page.scripts.empty()) {
    out +=
        fmt::format("<script type=\"application/json\" id=\"data\">{}</script>\n<script>\n{}{}{}",
                    script_json(page.data), kTextJs, kAxesJs, kChartsJs);
    for (const std::string_view script : page.scripts) out += script;
    out += "</script>\n";
  }
  return out + "</body>\n</html>\n";
}

std::string section(std::string_view heading, std::string_view markup, bool card) {
  return fmt::format("<section><h2>{}</h2>\n{}{}{}</section>\n", escape_html(heading),
                     card ? "<div class=\"card\">\n" : "", markup, card ? "</div>" : "");
}

std::string tiles(const std::vector<Tile>& tiles) {
  std::string out = "<section aria-label=\"Headline numbers\">\n";
  for (const bool main : {true, false}) {
    const auto count =
        std::count_if(tiles.begin(), tiles.end(), [&](const Tile& t) { return t.is_main == main; });
    if (count == 0) continue;
    // Two rows of about the same length where one would be crowded.
    out += fmt::format("<div class=\"tiles{}\" style=\"--per-row: {}\">\n", main ? " main" : "",
                       count <= 6 ? count : (count + 1) / 2);
    for (const Tile& t : tiles) {
      if (t.is_main != main) continue;
      out += fmt::format(
          "<div class=\"tile\"><div class=\"label\">{}</div><div class=\"value\">{}</div>",
          escape_html(t.label), escape_html(t.value));
      if (!t.note.empty()) out += fmt::format("<div class=\"note\">{}</div>", escape_html(t.note));
      out += "</div>\n";
    }
    out += "</div>\n";
  }
  return out + "</section>\n";
}

Cell Cell::of_markup(std::string markup) {
  Cell cell;
  cell.markup = std::move(markup);
  return cell;
}

Cell Cell::with_tone(std::string tone) const {
  Cell cell = *this;
  cell.tone = std::move(tone);
  return cell;
}

Cell Cell::with_title(std::string text) const {
  Cell cell = *this;
  cell.title = std::move(text);
  return cell;
}

Cell Cell::across(int columns) const {
  Cell cell = *this;
  cell.columns = columns;
  return cell;
}

HtmlTable::HtmlTable(std::vector<Column> columns, std::string look)
    : columns_(std::move(columns)), look_(std::move(look)) {}

void HtmlTable::row(const std::vector<Cell>& cells, std::string_view tone, std::string_view title) {
  rows_ += "<tr" + attribute("class", tone) + attribute("title", title) + ">";
  size_t column = 0;
  for (const Cell& cell : cells) {
    std::string look = column < columns_.size() && columns_[column].number ? "num" : "";
    if (!cell.tone.empty()) look += (look.empty() ? "" : " ") + cell.tone;
    rows_ += "<td" + attribute("class", look) + attribute("title", cell.title);
    if (cell.columns > 1) rows_ += fmt::format(" colspan=\"{}\"", cell.columns);
    rows_ += ">" + cell.markup + "</td>";
    column += static_cast<size_t>(cell.columns);
  }
  rows_ += "</tr>\n";
}

std::string HtmlTable::html() const {
  std::string heads;
  const bool any = std::any_of(columns_.begin(), columns_.end(),
                               [](const Column& c) { return !c.head.empty(); });
  for (const Column& c : columns_) {
    if (any)
      heads += fmt::format("<th{}>{}</th>", c.number ? " class=\"num\"" : "", escape_html(c.head));
  }
  if (any) heads = "<thead><tr>" + heads + "</tr></thead>";
  return fmt::format("<div class=\"scroll\"><table{}>{}<tbody>\n{}</tbody></table></div>\n",
                     attribute("class", look_), heads, rows_);
}

std::string meter(double share, std::string_view text) {
  return fmt::format("<span class=\"meter{}\"><i style=\"width: {:.1f}%\"></i></span>{}",
                     share > 1 ? " over" : "", 100 * std::clamp(share, 0.0, 1.0),
                     escape_html(text));
}

}  // namespace ductile::page
