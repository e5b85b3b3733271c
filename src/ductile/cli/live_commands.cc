#include <chrono>
#include <fstream>
#include <iterator>
#include <thread>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/cli/commands.h"
#include "ductile/page/terminal.h"
#include "ductile/run/folder.h"
#include "ductile/server/client.h"
#include "ductile/server/job_host.h"

namespace ductile::cli {
namespace {

using nlohmann::json;

constexpr std::chrono::seconds kPreemptPatience{120};
constexpr std::chrono::milliseconds kLook{100};

run::RunFolder live_run(const LiveCommand& command) { return run::RunFolder::open(command.run); }

std::string ranks_of(const json& worker) {
  if (!worker.contains("ranks")) return "-";
  const auto begin = worker["ranks"].at(0).get<int64_t>();
  const auto end = worker["ranks"].at(1).get<int64_t>();
  return end - begin == 1 ? std::to_string(begin) : fmt::format("{}-{}", begin, end - 1);
}

void print_answer(const LiveCommand& command, Console& console, const json& answer,
                  const std::string& text) {
  if (command.json) {
    console.print("{}\n", dump_json(answer, 2));
  } else {
    console.say("{}", text);
  }
}

// From the beginning of the last `lines` lines.
std::streamoff tail_begin(const std::string& text, int64_t lines) {
  size_t at = text.size();
  if (at > 0 && text.back() == '\n') --at;
  for (int64_t i = 0; i < lines; ++i) {
    at = at == 0 ? std::string::npos : text.rfind('\n', at - 1);
    if (at == std::string::npos) return 0;
  }
  return static_cast<std::streamoff>(at + 1);
}

}  // namespace

ExitCode status(const LiveCommand& command, Context& context) {
  const json answer = server::ask(live_run(command).path(), {{"request", "status"}});
  Console& console = context.console;
  if (command.json) {
    console.print("{}\n", dump_json(answer, 2));
    return kDone;
  }
  const auto number = [&](const char* key) {
    return std::to_string(answer.at(key).get<int64_t>());
  };
  const int64_t checkpoint = answer.at("checkpoint");
  console.print(
      "{}", page::table({{"phase", answer.at("phase").get<std::string>()},
                         {"now", answer.at("why").get<std::string>()},
                         {"step", number("step")},
                         {"checkpoint", checkpoint < 0 ? "none" : std::to_string(checkpoint)},
                         {"workers wanted", number("wanted")},
                         {"generation",
                          std::to_string(answer.at("generation").at("number").get<int64_t>())}}));
  std::vector<std::vector<std::string>> rows = {
      {"worker", "phase", "step", "virtual ranks", "host", "process", ""}};
  for (const json& worker : answer.at("workers")) {
    rows.push_back(
        {std::to_string(worker.at("id").get<int64_t>()), worker.at("phase").get<std::string>(),
         std::to_string(worker.at("step").get<int64_t>()), ranks_of(worker),
         worker.value("host", ""),
         worker.contains("process") ? std::to_string(worker["process"].get<int64_t>()) : "",
         worker.at("connected").get<bool>() ? "" : "not connected"});
  }
  if (rows.size() > 1) console.print("\n{}", page::table(rows));
  return kDone;
}

ExitCode resize(const LiveCommand& command, Context& context) {
  const json answer =
      server::ask(live_run(command).path(), {{"request", "resize"}, {"workers", *command.workers}});
  print_answer(command, context.console, answer,
               fmt::format("resizing to {} workers", *command.workers));
  return kDone;
}

ExitCode preempt(const LiveCommand& command, Context& context) {
  const run::RunFolder folder = live_run(command);
  const json answer = server::ask(folder.path(), {{"request", "preempt"}});
  server::await_end(folder.path(), kPreemptPatience);
  print_answer(command, context.console, answer,
               fmt::format("preempted; to go on: ductile resume {}", folder.path().string()));
  return kDone;
}

ExitCode resume(const LiveCommand& command, Context& context) {
  const run::RunFolder folder = live_run(command);
  if (server::has_controller(folder.path())) {  // it is being preempted: that is taken back
    const json answer = server::ask(
        folder.path(), {{"request", "resume"}, {"workers", command.workers.value_or(0)}});
    print_answer(command, context.console, answer, "resuming");
    return kDone;
  }
  TrainCommand again;
  again.resume = folder.path();
  again.workers = command.workers;
  again.hosts = command.hosts;
  again.trust = command.trust;
  again.json = command.json;
  return train(again, context);
}

ExitCode logs(const LiveCommand& command, Context& context) {
  const run::RunFolder folder = live_run(command);
  std::ifstream log(folder.log_file(), std::ios::binary);
  if (!log) {
    fail(ErrorCode::not_found, "{}: no worker has said anything yet", folder.log_file().string());
  }
  std::string text((std::istreambuf_iterator<char>(log)), std::istreambuf_iterator<char>());
  context.console.out() << text.substr(static_cast<size_t>(tail_begin(text, command.lines)))
                        << std::flush;
  bool live = command.follow;
  while (live) {
    live = server::has_controller(folder.path());  // before reading: nothing is missed at the end
    log.clear();
    text.assign(std::istreambuf_iterator<char>(log), std::istreambuf_iterator<char>());
    context.console.out() << text << std::flush;
    if (live) std::this_thread::sleep_for(kLook);
  }
  return kDone;
}

}  // namespace ductile::cli
