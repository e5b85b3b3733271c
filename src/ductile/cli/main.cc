// The program `ductile`.
#include <iostream>
#include <string_view>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/cli/command_line.h"
#include "ductile/cli/other_commands.h"

namespace {

// `ductile` alone and `ductile help [COMMAND]` are `ductile [COMMAND] --help`, and `help` is no
// command that has one of its own. Ends with a null.
std::vector<char*> words_of(int argc, char** argv) {
  static char help[] = "--help";
  std::vector<char*> words(argv, argv + argc);
  while (words.size() > 1 && std::string_view(words[1]) == "help") words.erase(words.begin() + 1);
  if (argc == 1 || words.size() < static_cast<size_t>(argc)) words.push_back(help);
  words.push_back(nullptr);
  return words;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace ductile::cli;
  std::vector<char*> words = words_of(argc, argv);
  const int count = static_cast<int>(words.size()) - 1;
  if (!is_other_command(count, words.data()))
    return run_program(count, words.data(), own_commands());
  try {
    become_fleet(words.data());
  } catch (const ductile::Error& error) {
    std::cerr << "ductile: " << error.what() << "\n";
    return exit_code(error.code());
  }
}
