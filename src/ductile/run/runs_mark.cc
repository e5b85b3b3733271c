#include "ductile/run/runs_mark.h"

#include "ductile/base/error.h"

namespace ductile::run {
namespace {

constexpr size_t kDigits = 16;

}  // namespace

fs::path runs_mark_file(const fs::path& runs) { return runs / ".ductile-runs"; }

std::string runs_mark(const fs::path& runs) {
  const fs::path file = runs_mark_file(runs);
  std::string text;
  try {
    text = read_text(file, 4096);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::not_found) return "";
    if (error.code() != ErrorCode::invalid_argument) throw;
  }
  while (text.ends_with('\n') || text.ends_with('\r') || text.ends_with(' ')) text.pop_back();
  if (text.size() != kDigits || text.find_first_not_of("0123456789abcdef") != std::string::npos)
    fail(ErrorCode::data_loss, "{}: holds no mark of a folder of runs, which has {} digits",
         file.string(), kDigits);
  return text;
}

bool is_another_folder(const fs::path& runs, const std::string& mark) {
  try {
    return runs_mark(runs) != mark;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::data_loss) throw;
    return true;
  }
}

}  // namespace ductile::run
