#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/base/table.h"

namespace ductile {

// The types an option may have.
using OptionRef = std::variant<bool*, int64_t*, double*, std::string*, std::vector<int64_t>*,
                               std::vector<double>*, std::vector<std::string>*>;
using OptionValue = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>,
                                 std::vector<double>, std::vector<std::string>>;

// Where a value came from: "default", "job.toml:12", "environment DUCTILE_TRAIN__EPOCHS", "--set".
struct Origin {
  std::string text = "default";
  bool is_default() const { return text == "default"; }
};

// One option: a dotted path, its place in memory, help text and the values it allows.
struct OptionField {
  std::string path;
  std::string help;
  OptionRef ref;
  OptionValue default_value;
  Origin origin;
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false;                // min itself is not allowed
  std::vector<std::string> choices;      // allowed strings; empty: any
  std::vector<std::string> choice_help;  // of each choice; empty: the option's help says it
};

// An option that is found under another name since: where it stood, and what it is now (several
// where it was split).
struct MovedOption {
  std::string old_path;
  std::vector<std::string> new_paths;
};

// What is done with a key that has moved.
enum class Moved {
  refuse,  // an error names the new key: what people write
  follow,  // it is read as what it is now: what a run has kept since an earlier version
};

// Handed to describe(Describer&, Options&): names each field of an options struct once. From that
// one function come TOML and JSON reading, --set, the environment, JSON Schema, the reference docs
// and `ductile config`.
//
//   struct LoaderOptions { int64_t threads = 0; };
//   void describe(Describer& d, LoaderOptions& o) {
//     d.field("threads", o.threads, "decoding threads; 0 = find by measuring").range(0, 256);
//   }
class Describer {
 public:
  class FieldHandle {
   public:
    FieldHandle(std::vector<OptionField>& fields, size_t index) : fields_(fields), index_(index) {}
    FieldHandle& range(double min, double max);  // both ends allowed
    FieldHandle& at_least(double min);
    FieldHandle& above(double min);  // min itself is not allowed
    // Adds to the allowed strings.
    FieldHandle& one_of(std::initializer_list<std::string_view> choices);
    FieldHandle& one_of(std::string_view choice, std::string_view help);
    template <class Row>
    FieldHandle& one_of(const Table<Row>& table) {
      for (const Row& row : table) one_of(row.name, row.help);
      return *this;
    }

   private:
    std::vector<OptionField>& fields_;
    size_t index_;
  };

  // T is one of the types of OptionValue.
  template <class T>
  FieldHandle field(std::string_view name, T& value, std::string_view help) {
    return add(name, OptionRef(&value), help);
  }

  // A nested table; calls describe(*this, options). It comes after the fields of the table that
  // holds it, as in TOML.
  template <class O>
  void section(std::string_view name, O& options, std::string_view help) {
    enter(name, help);
    describe(*this, options);
    leave();
  }

  // Declares that a field `name`, which was here once, has become one of (or all of) `now`; all are
  // paths from here. `name` may lie in a table that there is no longer.
  void moved(std::string_view name, std::initializer_list<std::string_view> now);

  // Declares that what other programs call `word` is one of (or all of) `here`, which are paths
  // from here: the error for an unknown key whose last part is `word` names these.
  void called_elsewhere(std::string_view word, std::initializer_list<std::string_view> here);

 private:
  friend class OptionSet;
  FieldHandle add(std::string_view name, OptionRef ref, std::string_view help);
  void enter(std::string_view name, std::string_view help);
  void leave();

  std::string prefix_;
  std::vector<OptionField> fields_;
  std::vector<std::pair<std::string, std::string>> sections_;  // path, help
  std::vector<MovedOption> moved_;
  std::vector<MovedOption> elsewhere_;  // old_path: the word
};

// Reads, checks and prints the options of one object, which must outlive the set. Every wrong input
// throws Error(invalid_argument), which names the file, the line and the key, says what would be
// right and, for an unknown key, suggests the nearest known one.
class OptionSet {
 public:
  template <class O>
  explicit OptionSet(O& options) {
    Describer d;
    describe(d, options);
    adopt(std::move(d));
  }

  void read_toml(const std::filesystem::path& file, Moved moved = Moved::refuse);
  void read_toml_text(std::string_view text, std::string_view name, Moved moved = Moved::refuse);
  void read_json(const nlohmann::json& value, std::string_view name, Moved moved = Moved::refuse);
  // "train.epochs=5"; strings may be bare, lists are written as in TOML ([1, 2]).
  void set(std::string_view assignment, std::string_view origin = "--set");
  // DUCTILE_TRAIN__EPOCHS=5 sets train.epochs. A variable that names no option is an error if it
  // contains "__" or nearly names one (DUCTILE_TRAIN_EPOCHS); other variables are ignored.
  void read_environment(const char* const* environment, std::string_view prefix = "DUCTILE_");
  // The names of the variables that read_environment() reads, in the order of the fields.
  std::vector<std::string> environment_names(std::string_view prefix = "DUCTILE_") const;

  const std::vector<OptionField>& fields() const { return fields_; }
  const OptionField* find(std::string_view path) const;

  // TOML of every value (or only of those that differ from the default); with help as comments.
  std::string to_toml(bool only_changed = false, bool with_help = false) const;
  nlohmann::json to_json() const;
  nlohmann::json json_schema(std::string_view title) const;
  // One Markdown table per section: key, default, allowed, help.
  std::string markdown() const;

 private:
  void adopt(Describer&& d);
  // Throws, with what was probably meant, where there is none. `as_section`: it has keys itself.
  OptionField& require(std::string_view path, const std::string& where, bool as_section = false);
  // What was probably meant by a path that there is not: one or several; empty: nobody knows.
  std::string meant_by(std::string_view path, bool as_section) const;
  const MovedOption* find_moved(std::string_view path) const;
  bool is_section(std::string_view path) const;
  // Whether a field has moved from there.
  bool was_section(std::string_view path) const;
  void assign(OptionField& field, const nlohmann::json& value, const std::string& where,
              Origin origin);
  void read_table(const nlohmann::json& value, const std::string& prefix, Moved moved,
                  const std::function<std::string(const std::string& path)>& where);

  std::vector<OptionField> fields_;
  std::vector<std::pair<std::string, std::string>> sections_;
  std::vector<MovedOption> moved_, elsewhere_;
};

// The value as TOML writes it: 1, 0.1, "text", [1, 2].
std::string to_toml(const OptionRef& ref);
std::string to_toml(const OptionValue& value);
}  // namespace ductile
