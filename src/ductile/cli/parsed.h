#pragma once

#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "ductile/cli/commands.h"

// The parts of the command line. The files command_line*.cc and fleet_main.cc alone see CLI11.
namespace ductile::cli {

// Everything the command line can say, and the command it chose.
struct Parsed {
  std::map<const CLI::App*, std::string> example;  // what the command's help begins with
  TrainCommand train;
  TuneCommand tune;
  ProfileCommand profile;
  CaptureCommand capture;
  ConfigCommand config;
  DoctorCommand doctor;
  DataInspectCommand data_inspect;
  DataConvertCommand data_convert;
  CkptCommand ckpt;
  TrainedCommand trained;
  ServeCommand serve;
  ModelsCommand models;
  LiveCommand live;
  ServiceCommand service;
  ReportCommand report;
  PlanCommand plan;
  SimCommand sim;
  BenchCommand bench;
  AllReduceBenchCommand bench_all_reduce;
  bool quiet = false, verbose = false;
  std::function<ExitCode(Context&)> chosen;
};

// CLI::Range, which takes NaN for a number in any range. All numbers are checked by this one.
class Range : public CLI::Range {
 public:
  template <class T>
  Range(T least, T most) : CLI::Range(least, most) {
    func_ = [within = func_](std::string& text) {
      double value = 0;
      if (CLI::detail::lexical_cast(text, value) && std::isnan(value))
        return fmt::format("Value {} is no number", text);
      return within(text);
    };
  }
};
inline CLI::Validator positive_number() {
  const auto check = [](std::string& text) {
    double value = 0;
    const bool is_right =
        CLI::detail::lexical_cast(text, value) && value > 0 && std::isfinite(value);
    return is_right ? std::string() : fmt::format("Value {} must be above 0 and finite", text);
  };
  return {check, ""};
}

void add_set(CLI::App& app, std::vector<std::string>& assignments);
void add_job(CLI::App& app, JobRequest& job);
void add_json(CLI::App& app, bool& json);
void add_hosts(CLI::App& app, HostsRequest& hosts);
void add_trust(CLI::App& app, bool& trust);

// One each of the program's commands.
void add_train(CLI::App& app, Parsed& parsed);
void add_tune(CLI::App& app, Parsed& parsed);
void add_profile(CLI::App& app, Parsed& parsed);
void add_capture(CLI::App& app, Parsed& parsed);
void add_config(CLI::App& app, Parsed& parsed);
void add_data(CLI::App& app, Parsed& parsed);
void add_ckpt(CLI::App& app, Parsed& parsed);
void add_trained(CLI::App& app, Parsed& parsed);
void add_serve(CLI::App& app, Parsed& parsed);
void add_models(CLI::App& app, Parsed& parsed);
void add_doctor(CLI::App& app, Parsed& parsed);

}  // namespace ductile::cli
