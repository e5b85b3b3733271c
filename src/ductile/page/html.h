#pragma once

#include <string>
#include <string_view>
#include <vector>

// HTML: escaping, the skeleton of a page that needs nothing but itself, and the parts that pages
// are laid out with (theme.css gives them their looks). "Markup" is HTML that its caller has
// escaped; every other text is escaped here.
namespace ductile::page {

// Text as it may stand in HTML, SVG and XML: between tags and inside quoted attributes. Invalid
// UTF-8 and control characters become U+FFFD.
std::string escape_html(std::string_view text);

// JSON as it may stand between <script> tags.
std::string script_json(std::string_view json);

struct Page {
  std::string title;  // of the tab; the heading too where `heading` is empty
  std::string kind;   // above the heading: "Ductile run"
  std::string heading;
  std::string status, tone;               // beside the heading; tone: plain, good, notice, bad
  std::vector<std::string> about;         // markup: a line each, under the heading
  std::string body;                       // markup
  std::string footer;                     // a line
  std::string style;                      // CSS of this page, after the theme
  std::string data;                       // JSON for the scripts
  std::vector<std::string_view> scripts;  // of this page, after text.js and charts.js; may be none
};
// Style, scripts and data are in the page: it names no other file and no address, so it may be
// mailed or archived.
std::string to_html(const Page& page);

// <section> with a heading, around a card of its own where `card` is set.
std::string section(std::string_view heading, std::string_view markup, bool card = true);

// A headline number.
struct Tile {
  std::string label, value, note = {};
  bool is_main = false;  // shown larger, in a row above the others
};
std::string tiles(const std::vector<Tile>& tiles);

struct Cell {
  Cell() = default;
  Cell(std::string_view text) : markup(escape_html(text)) {}
  Cell(const std::string& text) : Cell(std::string_view(text)) {}
  Cell(const char* text) : Cell(std::string_view(text)) {}
  static Cell of_markup(std::string markup);

  Cell with_tone(std::string tone) const;   // a class of the theme: good, bad, best, state, wide,
                                            // muted
  Cell with_title(std::string text) const;  // shown when pointed at
  Cell across(int columns) const;

  std::string markup, tone, title;
  int columns = 1;
};

// A table: a row of heads, then rows of cells. Columns of numbers are aligned to the right.
class HtmlTable {
 public:
  struct Column {
    std::string head;
    bool number = false;
  };
  // `look`: classes of the theme or of the page. No heads at all: no row of heads.
  explicit HtmlTable(std::vector<Column> columns, std::string look = "");
  void row(const std::vector<Cell>& cells, std::string_view tone = "", std::string_view title = "");
  std::string html() const;

 private:
  std::vector<Column> columns_;
  std::string look_, rows_;
};

// A bar that is filled by `share`, over-full where that is above 1; `text` stands beside it.
std::string meter(double share, std::string_view text);

}  // namespace ductile::page
