#include "ductile/cli/command_line.h"

#include <algorithm>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/paths.h"
#include "ductile/base/table.h"
#include "ductile/base/text.h"
#include "ductile/cli/other_commands.h"
#include "ductile/cli/parsed.h"
#include "ductile/cli/version.h"
#include "ductile/page/terminal.h"
#include "ductile/server/host_agent.h"
#include "ductile/server/pilot.h"

namespace ductile::cli {
namespace {

// CLI11's help without the lists of what excludes what.
class PlainFormatter : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override {
    const std::string& text = option->get_option_text();
    return text.empty() ? "" : " " + text;
  }
};

// The innermost subcommand the user named.
CLI::App* innermost(CLI::App& app) {
  CLI::App* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().back();
  return at;
}

std::string full_name(const CLI::App* app) {
  return app->get_parent() == nullptr ? app->get_name()
                                      : full_name(app->get_parent()) + " " + app->get_name();
}

// The words `app` knows: its subcommands, or its options where `option` holds.
std::vector<std::string> known_words(const CLI::App& app, bool option) {
  std::vector<std::string> words;
  if (!option) {
    for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
      words.push_back(sub->get_name());
    return words;
  }
  for (const CLI::App* at = &app; at != nullptr; at = at->get_parent()) {
    for (const CLI::Option* o : at->get_options()) {
      for (const std::string& name : o->get_lnames()) words.push_back("--" + name);
    }
  }
  return words;
}

// "data inspect: ", or nothing for the program itself.
std::string subject(const CLI::App& app) {
  const std::string name = full_name(&app);
  const size_t space = name.find(' ');
  return space == std::string::npos ? "" : name.substr(space + 1) + ": ";
}

// What to say of a word nobody took.
std::string unknown_word(const CLI::App& app, const std::string& word) {
  const bool option = word.size() > 1 && word.front() == '-';
  const std::string bare = word.substr(0, word.find('='));
  const auto words = known_words(app, option);
  const bool command = !option && !words.empty();
  std::string text = fmt::format("{}unknown {} '{}'", subject(app),
                                 option    ? "option"
                                 : command ? "command"
                                           : "argument",
                                 bare);
  if (const auto near = nearest_name(bare, words)) text += fmt::format("; did you mean {}?", *near);
  return text;
}

// Who comes from another queue submits a program as it is called. `unknown`: words nobody took.
std::string hint_for_program(const CLI::App& app, const std::vector<std::string>& unknown) {
  if (app.get_name() != "submit") return "";
  const std::vector<std::string> job = app.get_option("job")->results();
  if (job.empty() || job.front().ends_with(".toml")) return "";
  std::string rest;
  for (const std::string& word : unknown) rest += " " + page::shell_word(word);
  if (job.front().find(".py:") != std::string::npos)
    return fmt::format("; the words of a Python job follow --: ductile submit {} --{}", job.front(),
                       rest);
  return fmt::format("; another program follows --: ductile submit -- {}{}",
                     page::shell_word(job.front()), rest);
}

// Whether the option stands before the command, to which it may belong.
bool is_before_command(const CLI::App& app, const std::string& word,
                       std::span<const char* const> words) {
  if (app.get_parent() == nullptr || !word.starts_with("-")) return false;
  const auto option = std::ranges::find(words, std::string_view(word));
  const auto command = std::ranges::find(words, std::string_view(app.get_name()));
  return option < command && command != words.end();
}

ExitCode usage_error(CLI::App& app, const CLI::ParseError& error,
                     std::span<const char* const> words, Console& console) {
  const CLI::App* at = innermost(app);
  const std::vector<std::string> unknown = app.remaining(true);
  std::string text = unknown.empty()
                         ? subject(*at) + error.what()
                         : unknown_word(*at, unknown.front()) + hint_for_program(*at, unknown);
  if (!unknown.empty() && is_before_command(*at, unknown.front(), words))
    text = fmt::format("'{0}' stands before the command; say it after the verb: {1} {0} ...",
                       unknown.front(), full_name(at));
  console.error(text);
  console.err() << "Try '" << full_name(at) << " --help'.\n";
  return kUsage;
}

// What an option or a word of the command names, if that is a file or a folder: by what the help
// writes for its value, or by its own name.
std::optional<std::string_view> named_by(const CLI::Option& option) {
  static constexpr std::pair<std::string_view, std::string_view> kKinds[] = {
      {"DIR", "a folder"},
      {"FILE", "a file"},
      {"FILE...", "a file"},
      {"FILE|N", "a file, or a number"},
      {"N|FILE", "a number, or a file"},
      {"PATH", "a file or a folder"},
      {"RUN", "a run directory"},
      {"[job.toml]", "a job file"},
      {"[GRAPH]", "a graph file"},
      {"[WORKLOAD...]", "a workload file"},
      {"run", "a run directory"},
      {"path", "a file or a folder"},
      {"source", "a file or a folder"},
      {"destination", "a folder"},
      {"cluster", "a cluster file"},
  };
  const std::string text = option.get_option_text() == " " ? option.get_name()  // of a word
                                                           : option.get_option_text();
  const auto* kind = std::ranges::find(kKinds, text, [](const auto& k) { return k.first; });
  if (kind == std::end(kKinds)) return std::nullopt;
  return kind->second;
}

// An empty path names nothing: it would be taken for an option that was left out, or be told by a
// system call that does not know which option it was.
void refuse_empty_paths(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    const auto what = named_by(*option);
    if (what && std::ranges::find(option->results(), "") != option->results().end())
      fail(ErrorCode::invalid_argument, "{} is empty: name {}", option->get_name(), *what);
  }
}

// What follows -- of these commands is another program's, to the last letter. How many words are
// ours.
int take_command(int argc, const char* const* argv, Parsed& parsed) {
  const char* const* end = std::find(argv, argv + argc, std::string_view("--"));
  // A launcher command is given the words of the host's agent; this one needs only its own.
  if (argc > 4 && argv[1] == std::string_view(server::kCallPilot)) return 4;
  if (end == argv + argc) return argc;
  const auto is = [&](std::string_view name) { return std::find(argv, end, name) != end; };
  if (is("submit")) {
    parsed.service.command.emplace(end + 1, argv + argc);
  } else if (is("train")) {
    parsed.train.job.arguments.emplace(end + 1, argv + argc);
  } else if (is("capture")) {
    parsed.capture.job.arguments.emplace(end + 1, argv + argc);
  } else if (is("config")) {
    parsed.config.job.arguments.emplace(end + 1, argv + argc);
  } else {
    return argc;
  }
  return static_cast<int>(end - argv);
}

// What launcher commands start; not for people.
void add_host_agent(CLI::App& app, Parsed& parsed) {
  app.add_subcommand(server::kHostAgent, "the agent of a host")->group("")->callback([&parsed] {
    parsed.chosen = [](Context&) {
      return server::run_host_agent(STDIN_FILENO, STDOUT_FILENO) == 0 ? kDone : kFailed;
    };
  });
}

// For the list of commands, and the nearest name.
template <std::span<const OtherCommand> (*rows)()>
void add_named(CLI::App& app, Parsed&) {
  for (const OtherCommand& row : rows()) app.add_subcommand(row.name, row.help);
}

// Where the shell's folder was deleted, most that goes wrong goes wrong for that. Empty: it was
// not.
std::string deleted_folder() {
  std::error_code error, unknown;
  if (!fs::current_path(error).empty() || error != std::errc::no_such_file_or_directory) return "";
  std::string was = fs::read_symlink("/proc/self/cwd", unknown).string();
  if (const size_t mark = was.rfind(" (deleted)"); mark != std::string::npos) was.resize(mark);
  return fmt::format(
      "the current folder{}{} does not exist any more; go to another one (cd) and "
      "try again",
      was.empty() ? "" : " ", was);
}

// What batch systems start, and what calls that; not for people.
void add_pilot(CLI::App& app, Parsed& parsed) {
  const auto words = std::make_shared<std::vector<std::string>>();
  CLI::App* pilot = app.add_subcommand(server::kPilot, "the agent of a batch job")->group("");
  pilot->add_option("words", *words)->expected(1, 2);
  pilot->callback([&parsed, words] {
    parsed.chosen = [words](Context&) {
      return server::run_pilot(words->at(0), words->size() > 1 ? words->at(1) : "") == 0 ? kDone
                                                                                         : kFailed;
    };
  });
  CLI::App* call = app.add_subcommand(server::kCallPilot, "talk to a pilot's agent")->group("");
  call->add_option("words", *words)->expected(2);
  call->callback([&parsed, words] {
    parsed.chosen = [words](Context&) {
      return server::call_pilot(words->at(0), words->at(1), STDIN_FILENO, STDOUT_FILENO) == 0
                 ? kDone
                 : kFailed;
    };
  });
}

}  // namespace

void add_set(CLI::App& app, std::vector<std::string>& assignments) {
  app.add_option("--set", assignments, "set an option: --set train.epochs=5 (repeatable)")
      ->option_text("KEY=VALUE")
      ->allow_extra_args(false);
}

void add_job(CLI::App& app, JobRequest& job) {
  app.add_option(
         "job", job.file,
         "job file (TOML; default: the embedded digits on the default cnn), or the class of "
         "a Python job (FILE.py:CLASS)")
      ->option_text("[job.toml]");
  add_set(app, job.assignments);
}

void add_json(CLI::App& app, bool& json) { app.add_flag("--json", json, "write JSON to stdout"); }

std::span<const AddCommand> own_commands() {
  static constexpr AddCommand kCommands[] = {add_train,
                                             add_tune,
                                             add_profile,
                                             add_capture,
                                             add_named<live_commands>,
                                             add_named<service_commands>,
                                             add_config,
                                             add_data,
                                             add_ckpt,
                                             add_trained,
                                             add_serve,
                                             add_models,
                                             add_named<lab_commands>,
                                             add_doctor};
  return kCommands;
}

ExitCode run_command_line(int argc, const char* const* argv, Context& context,
                          std::span<const AddCommand> commands) {
  for (int i = 0; i < argc; ++i)
    context.command += (i > 0 ? " " : "") + (i > 0 ? std::string(argv[i]) : "ductile");
  Console& console = context.console;
  Parsed parsed;
  CLI::App app("Trains deep networks on machines that come and go.", "ductile");
  app.formatter(std::make_shared<PlainFormatter>());
  parsed.example[&app] =
      "Example:\n"
      "  ductile train                       # on embedded data\n"
      "  ductile train job.toml --set train.epochs=5\n"
      "  ductile help jobs                   # what a command does and takes\n";
  app.set_version_flag("--version", fmt::format("ductile {}", version()));
  app.require_subcommand(1);
  app.fallthrough();
  CLI::Option* quiet_flag = app.add_flag("-q,--quiet", parsed.quiet, "print only data and errors");
  app.add_flag("-v,--verbose", parsed.verbose, "print more")->excludes(quiet_flag);
  app.get_option("--help")->description("print this help");
  app.get_option("--version")->description("print the version");
  app.footer(
      "Exit codes: 0 done, 1 failed, 2 usage or configuration, 3 job failed, 4 not found or\n"
      "conflict, 5 server unreachable, 130 interrupted.");
  for (const AddCommand add : commands) add(app, parsed);
  add_host_agent(app, parsed);
  add_pilot(app, parsed);

  for (int i = 1; i < argc; ++i) {  // what is said here goes into files that are UTF-8
    if (const size_t at = find_not_utf8(argv[i]); at != std::string_view::npos) {
      console.error(fmt::format("'{}': byte {} is not UTF-8 text", to_utf8(argv[i]), at + 1));
      return kUsage;
    }
  }
  argc = take_command(argc, argv, parsed);
  const std::span words(argv, static_cast<size_t>(argc));
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    const CLI::App* at = innermost(app);
    if (at->get_name() != "bench" && app.remaining_size(true) > 0)
      return usage_error(app, help, words, console);
    console.out() << parsed.example[at] << "\n" << app.help();
    return kDone;
  } catch (const CLI::CallForVersion& version) {
    console.out() << version.what() << "\n";
    return kDone;
  } catch (const CLI::ParseError& error) {
    return usage_error(app, error, words, console);
  }
  console.verbosity = parsed.quiet ? -1 : parsed.verbose ? 1 : 0;

  try {
    refuse_empty_paths(*innermost(app));
    return parsed.chosen(context);
  } catch (const Error& error) {
    const std::string gone = error.code() == ErrorCode::not_found ? deleted_folder() : "";
    console.error(gone.empty() ? error.what() : fmt::format("{} ({})", error.what(), gone));
    return exit_code(error.code());
  } catch (const fs::filesystem_error& error) {
    const std::string gone = deleted_folder();
    const Error known = gone.empty() ? error_of(error) : Error(ErrorCode::not_found, gone);
    console.error(known.what());
    return exit_code(known.code());
  } catch (const std::bad_alloc&) {
    console.error("not enough memory");
    return kFailed;
  } catch (const std::exception& error) {
    console.error(fmt::format("unexpected: {}", error.what()));
    return kFailed;
  }
}

}  // namespace ductile::cli
