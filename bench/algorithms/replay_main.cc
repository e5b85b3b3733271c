// Replays tuning methods on recorded learning curves.
//   replay FILE [--methods A,B,...] [--seeds N] [--metric NAME[:max|:min]] [--tasks TEXT]
//          [--least-runs N] [--tuned N | --apart TEXT] [--share S] [--until S] [--ours METHOD]
//          [--json] [--html PAGE]
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "comparison.h"
#include "ductile/base/error.h"

namespace {

using namespace ductile;
using namespace ductile::replay;

constexpr const char* kHelp =
    R"(Usage: replay FILE [OPTION ...]
Example: replay taskset-curves.jsonl.zst --methods random,tpe,ductile --seeds 50 --json

FILE holds learning curves, one JSON object a line (.jsonl or .jsonl.zst): task (or workload), hp
(or hparams), and a list of numbers for each measure. See bench/algorithms/curve_file.h.

  --methods A,B,...  POLICY[+SEARCHER][:OPTION=VALUE...]; random, grid, tpe, gp, bohb and ductile are
                     short for policies with searchers; OPTION=1|2|3 tries each and counts the best
  --seeds N          runs of each method on each task (default 50)
  --metric NAME      the measure to tune, with :max or :min if its name does not say
  --tasks TEXT       only tasks whose name contains TEXT
  --least-runs N     leaves out tasks with fewer runs (default 2)
  --tuned N          the first N tasks in alphabetical order chose the settings; report them apart
  --apart TEXT       tasks whose name contains TEXT are kept apart; the others chose the settings
  --share S          random full runs "need" what takes them to the best S of all runs (default 0.01)
  --until S          how much of that each method may spend (default 0.5)
  --ours METHOD      the group that win rates are given for (default ductile)
  --html PAGE        also writes a page with the curves
  --json             results as JSON, else as Markdown, to stdout
)";

}  // namespace

int main(int argc, char** argv) {
  Request request;
  bool as_json = false;
  std::string page;
  try {
    for (int i = 1; i < argc; ++i) {
      const std::string arg = argv[i];
      const auto value = [&]() -> std::string {
        if (++i >= argc) fail(ErrorCode::invalid_argument, "{} needs a value; see --help", arg);
        return argv[i];
      };
      const auto number = [&](double low, double high) {
        const std::string text = value();
        char* end = nullptr;
        const double v = std::strtod(text.c_str(), &end);
        if (text.empty() || *end != '\0' || !(v >= low && v <= high))
          fail(ErrorCode::invalid_argument, "{} {}: a number from {} to {} is wanted", arg, text,
               low, high);
        return v;
      };
      if (arg == "--help" || arg == "-h") {
        std::fputs(kHelp, stdout);
        return 0;
      } else if (arg == "--methods") {
        request.methods = value();
      } else if (arg == "--seeds") {
        request.seeds = static_cast<int>(number(1, 100000));
      } else if (arg == "--metric") {
        request.metric = parse_metric(value());
      } else if (arg == "--tasks") {
        request.only = value();
      } else if (arg == "--least-runs") {
        request.least_runs = static_cast<size_t>(number(2, 1e9));
      } else if (arg == "--tuned") {
        request.tuned = static_cast<size_t>(number(0, 1e6));
      } else if (arg == "--apart") {
        request.apart = value();
      } else if (arg == "--share") {
        request.share = number(1e-9, 1);
      } else if (arg == "--until") {
        request.until = number(0.01, 10);
      } else if (arg == "--ours") {
        request.ours = value();
      } else if (arg == "--html") {
        page = value();
      } else if (arg == "--json") {
        as_json = true;
      } else if (arg.starts_with("-") || !request.file.empty()) {
        fail(ErrorCode::invalid_argument, "{} is not known; see --help", arg);
      } else {
        request.file = arg;
      }
    }
    if (request.file.empty()) fail(ErrorCode::invalid_argument, "a file is wanted; see --help");
    if (request.tuned > 0 && !request.apart.empty())
      fail(ErrorCode::invalid_argument, "--tuned and --apart say the same thing: give one of them");
    const Comparison comparison = compare(request);
    if (!page.empty()) write_file_atomic(page, to_page(comparison));
    std::fputs((as_json ? to_json(comparison) : to_markdown(comparison)).c_str(), stdout);
    return 0;
  } catch (const Error& e) {
    std::fprintf(stderr, "replay: %s\n", e.what());
    return e.code() == ErrorCode::invalid_argument ? 2 : e.code() == ErrorCode::not_found ? 4 : 1;
  }
}
