// What the pipeline planner finds and what it costs, beside the planners of others.
//   plan_search_bench models | alike [MODEL] | piper [INPUT [DEVICES]] | pipedream [PROFILE] |
//   partitioning [FILE] | scale [FILE.svg] (none: all)
// Prints Markdown tables. CPU seconds of one thread; ours and the others' in turn, in one process.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/graph/builders.h"
#include "ductile/graph/formats.h"
#include "ductile/plan/baselines/baselines.h"
#include "ductile/plan/baselines/max_load.h"
#include "ductile/plan/baselines/piper.h"

namespace {

using namespace ductile;
using namespace ductile::plan;

const std::string kData = DUCTILE_SOURCE_DIR "/../shared/data/graphs/";
std::vector<double> gaps_real;

double median(std::vector<double> v) {
  if (v.empty()) return 0;
  std::sort(v.begin(), v.end());
  const size_t n = v.size();
  return n % 2 == 1 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

// A cell of a table, empty where there is no figure.
void figure(const char* format, double x) {
  if (x > 0) {
    std::printf(format, x);
  } else {
    std::printf(" |");
  }
}

// Seconds, so that a busy machine does not cut short the searches of others; and a note where it
// did.
constexpr double kTimeOfOthers = 600;
const char* time_over(const BaselineResult& r) { return r.timed_out ? " (time over)" : ""; }

// GraphPipe's three models on V100-like devices, four to a node.
void models() {
  std::printf(
      "\n| model, batch | devices | ours s/iteration | samples/s | gap %% | gap to any schedule %% "
      "| CPU ms |");
  std::string line = "|---|---|---|---|---|---|---|";
  for (const Baseline& b : baselines()) {
    std::printf(" %s: ratio |%s", std::string(b.name).c_str(),
                b.name == "graphpipe" ? " CPU ratio |" : "");
    line += b.name == "graphpipe" ? "---|---|" : "---|";
  }
  std::printf("\n%s\n", line.c_str());
  const std::map<std::string, int64_t> batches = {{"mmt", 512}, {"dlrm", 2048}, {"candle", 8192}};
  std::vector<double> over_graphpipe, over_chain;
  for (const auto& [name, batch] : batches) {
    const graph::Graph g = graph::build_graph(name);
    for (int k : {4, 8, 16, 32}) {
      DeviceGroup group;
      group.memory = 15e9;
      const Devices devices = uniform_devices(k, 4, group);
      PlannerOptions options;
      options.batch = batch;
      PlannerOptions theirs = options;
      theirs.time_limit = kTimeOfOthers;
      std::vector<double> ours;
      Planned p;
      for (int i = 0; i < 3; ++i) {
        p = make_plan(g, devices, options);
        ours.push_back(p.cpu_seconds);
      }
      std::printf("| %s %ld | %d | %.5f | %.0f | %.2f | %.1f | %.1f |", name.c_str(),
                  static_cast<long>(batch), k, p.simulated_seconds,
                  static_cast<double>(batch) / p.simulated_seconds, 100 * p.gap,
                  100 * p.schedule_gap, 1e3 * median(ours));
      double chain = 0;
      for (const Baseline& b : baselines()) {
        const BaselineResult r = run_baseline(b.name, g, devices, theirs);
        if (!r.ok()) {
          std::printf(" fails%s |%s", time_over(r), b.name == "graphpipe" ? " |" : "");
          continue;
        }
        const double ratio = r.plan.predicted_seconds / p.simulated_seconds;
        std::printf(" %.3f%s |", ratio, time_over(r));
        if (b.name == "graphpipe") {
          std::printf(" %.0f |", r.cpu_seconds / median(ours));
          if (k == 32) over_graphpipe.push_back(ratio);
        }
        if (b.name == "pipedream" || b.name == "piper") {
          chain = chain == 0 ? ratio : std::min(chain, ratio);
        }
      }
      if (k == 32) over_chain.push_back(chain);
      std::printf("\n");
      std::fflush(stdout);
    }
  }
  const auto mean = [](const std::vector<double>& v) {
    double sum = 0;
    for (double x : v) sum += x;
    return sum / static_cast<double>(v.size());
  };
  std::printf(
      "\nMean at 32 devices: %.3f x GraphPipe's rule, %.3f x the best of Piper and PipeDream.\n",
      mean(over_graphpipe), mean(over_chain));
}

// The same models with equal freedom: stages as graphs, replicas, 1F1B on both sides; then with
// zero-bubble schedules and room used on both. `only`: one model, or all.
void alike(const std::string& only) {
  std::printf(
      "\n| model, batch | devices | ours 1F1B, no splits s | GraphPipe's rule | PipeDream | ours, "
      "schedules, no splits s | GraphPipe's rule with the same schedules | ours, all s | "
      "GraphPipe's rule | PipeDream |\n|---|---|---|---|---|---|---|---|---|---|\n");
  const std::map<std::string, int64_t> batches = {{"mmt", 512}, {"dlrm", 2048}, {"candle", 8192}};
  for (const auto& [name, batch] : batches) {
    if (!only.empty() && only != name) continue;
    const graph::Graph g = graph::build_graph(name);
    for (int k : {8, 16, 32}) {
      DeviceGroup group;
      group.memory = 15e9;
      const Devices devices = uniform_devices(k, 4, group);
      PlannerOptions options;
      options.batch = batch;
      options.time_limit = kTimeOfOthers;
      const double all = make_plan(g, devices, options).simulated_seconds;
      options.split = options.recompute = options.shard_optimizer = false;
      const double schedules = make_plan(g, devices, options).simulated_seconds;
      options.zero_bubble = false;
      const double plain = make_plan(g, devices, options).simulated_seconds;
      const BaselineResult rule = run_baseline("graphpipe", g, devices, options);
      const BaselineResult chain = run_baseline("pipedream", g, devices, options);
      const double theirs = rule.plan.predicted_seconds, row = chain.plan.predicted_seconds;
      // Its plan with all that memory holds in flight, up to twice the rule, and W apart.
      double scheduled = theirs;
      Plan zero = rule.plan;
      zero.schedule = ScheduleKind::zero_bubble;
      for (const int64_t times : {1, 2}) {
        for (Stage& s : zero.stages) s.in_flight = std::min(zero.batch, s.in_flight * times);
        const Timeline line = evaluate(g, devices, zero);
        if (line.fits()) scheduled = std::min(scheduled, line.seconds);
      }
      std::printf("| %s %ld | %d | %.5f | %.3f%s | %.3f%s | %.5f | %.3f | %.5f | %.3f | %.3f |\n",
                  name.c_str(), static_cast<long>(batch), k, plain, theirs / plain, time_over(rule),
                  row / plain, time_over(chain), schedules, scheduled / schedules, all,
                  theirs / all, row / all);
      std::fflush(stdout);
    }
  }
}

struct PiperCase {
  const char* file;
  int devices;
  double gib;
  int64_t micro_batches;  // in a batch
  double published;       // seconds; milliseconds where the file has those. 0: not run
  double published_cpu;   // seconds of Piper's own program
};

// `only` names an input, or is empty; `devices` is 0 for all. Piper's own algorithm, as we wrote
// it, runs where its table takes less than 1.2 GB.
void piper(const std::string& only, int devices) {
  std::printf(
      "\n| input | devices | GiB | downsets | published | ours | CPU s | Piper's program, "
      "published "
      "CPU s | ratio | Piper's algorithm, our code | CPU s | ratio |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  constexpr PiperCase kCases[] = {{"bert32a100", 8, 80, 1920, 0.122007, 0.029},
                                  {"bert32a100", 64, 80, 1920, 0.015650, 0.182},
                                  {"bert32a100", 128, 80, 1920, 0.008053, 0.388},
                                  {"bert32a100", 512, 80, 1920, 0.002273, 2.77},
                                  {"bert32a100", 1024, 80, 1920, 0.001159, 8.68},
                                  {"bert32a100", 64, 8, 1920, 0.020201, 0.143},
                                  {"bert32a100", 512, 8, 1920, 0.002561, 1.91},
                                  {"bert32a100", 1024, 8, 1920, 0.001303, 7.69},
                                  {"bert32a100", 1024, 2, 1920, 0.001841, 6.07},
                                  {"bert32a100", 1024, 1, 1920, 0.004392, 4.72},
                                  {"bert32a100", 2048, 80, 480, 0.001264, 17.5},
                                  {"resnet", 8, 4, 7680, 73.493, 1.82},
                                  {"resnet", 16, 2, 7680, 76.521, 2.84},
                                  {"resnet", 32, 2, 7680, 24.626, 4.28},
                                  {"resnet", 32, 8, 7680, 15.758, 4.62},
                                  {"resnet", 64, 2, 7680, 11.334, 5.44},
                                  {"resnet", 128, 2, 7680, 5.406, 7.73},
                                  {"resnet", 128, 4, 7680, 4.306, 8.89},
                                  {"resnet", 512, 2, 7680, 0, 0},
                                  {"resnet", 512, 4, 7680, 0, 0},
                                  {"resnet", 1024, 2, 7680, 0, 0},
                                  {"resnet", 2048, 2, 7680, 0, 0},
                                  {"gnmt", 2, 3.5, 256, 260.227, 107.1},
                                  {"gnmt", 8, 1.2, 256, 68.566, 273.2},
                                  {"gnmt", 512, 1.2, 256, 0, 0},
                                  {"gnmt", 1024, 1.2, 256, 0, 0},
                                  {"gnmt", 2048, 1.2, 256, 0, 0}};
  const auto figure = [](const char* format, double x) { std::printf(x > 0 ? format : " |", x); };
  for (const PiperCase& c : kCases) {
    if (!only.empty() && only != c.file) continue;
    if (devices != 0 && devices != c.devices) continue;
    const graph::Graph g = graph::read_graph(kData + "piper/" + c.file + ".json");
    const bool milli = std::string(c.file) != "bert32a100";
    PiperProblem problem;
    problem.memory = c.gib * (1 << 30);
    // Piper divides bytes by bytes per second and adds milliseconds: communication 1000 x too
    // cheap.
    problem.bandwidth = 25.0 * (1 << 30) * (milli ? 1000 : 1);
    problem.devices = c.devices;
    problem.micro_batches = c.micro_batches;
    const PiperResult ours = min_devices_search(g, problem, 1e-7);
    const double unit = milli ? 1e3 : 1;
    std::printf("| %s | %d | %g | %ld |", c.file, c.devices, c.gib,
                static_cast<long>(ours.downsets));
    figure(" %.6g |", c.published);
    std::printf(" %.6g | %.3f |", ours.seconds * unit, ours.cpu_seconds);
    figure(" %.3g |", c.published_cpu);
    figure(" %.0f |", c.published_cpu / ours.cpu_seconds);
    std::fflush(stdout);
    const PiperResult theirs = piper_search(g, problem);
    if (theirs.feasible) {
      std::printf(" %.6g | %.2f | %.0f |\n", theirs.seconds * unit, theirs.cpu_seconds,
                  theirs.cpu_seconds / ours.cpu_seconds);
    } else {
      std::printf(" %s | | |\n", theirs.failure.c_str());
    }
    std::fflush(stdout);
    gaps_real.push_back(ours.seconds / ours.lower_bound - 1);
  }
}

// PipeDream's profiles; one sample is a profiled micro-batch. Same judge.
void pipedream(const std::string& only) {
  std::printf(
      "\n| profile | operators | machines | ours s | gap %% | gap to any schedule %% | CPU s | "
      "PipeDream's algorithm, our "
      "code: s | ratio | CPU s | CPU ratio | its program, published CPU s | CPU ratio | space "
      "|\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  struct Case {
    const char* file;
    double cpu_4, cpu_16;  // 0: not run, or not to the end
  };
  std::vector<double> times, cpus;
  for (const Case& c :
       {Case{"image_classification/alexnet", 0.08, 0.10},
        Case{"image_classification/vgg16", 0.11, 0.13},
        Case{"image_classification/resnet18", 0.13, 0.38},
        Case{"image_classification/resnet50", 0.26, 1.47},
        Case{"image_classification/resnet101", 0.62, 5.08},
        Case{"image_classification/resnext50", 0.22, 1.32},
        Case{"image_classification/resnext101", 0.61, 4.71},
        Case{"image_classification/squeezenet1_0", 0.13, 0.37},
        Case{"image_classification/densenet121", 0.71, 5.72},
        Case{"image_classification/inception_v3", 0, 0},
        Case{"image_classification/nasnetamobile", 0, 0},
        Case{"image_classification/nasnetalarge", 0, 0}, Case{"translation/gnmt", 0.14, 0.36},
        Case{"translation/gnmt_large", 4.87, 28.7}}) {
    if (!only.empty() && std::string(c.file).find(only) == std::string::npos) continue;
    const graph::Graph g = graph::read_graph(kData + "pipedream/" + c.file + "/graph.txt");
    for (int k : {4, 16}) {
      DeviceGroup group;
      group.memory = 16e9;
      group.inter = {1e9, 0};
      group.intra = {1e9, 0};
      const Devices devices = uniform_devices(k, 1, group);
      PlannerOptions options;
      options.batch = 64;
      options.time_limit = 60;
      const Planned p = make_plan(g, devices, options);
      options.time_limit = kTimeOfOthers;
      const BaselineResult r = run_baseline("pipedream", g, devices, options);
      std::printf("| %s | %zu | %d |", c.file, g.ops.size(), k);
      if (p.feasible) {
        std::printf(" %.4f | %.2f | %.1f | %.3f |", p.simulated_seconds, 100 * p.gap,
                    100 * p.schedule_gap, p.cpu_seconds);
      } else {
        std::printf(" does not fit | | | %.3f |", p.cpu_seconds);
      }
      if (r.ok()) {
        const double ratio = r.plan.predicted_seconds / p.simulated_seconds;
        times.push_back(ratio);
        cpus.push_back(r.cpu_seconds / p.cpu_seconds);
        std::printf(" %.4f%s | %.3f | %.3f | %.2f |", r.plan.predicted_seconds, time_over(r), ratio,
                    r.cpu_seconds, cpus.back());
      } else {
        std::printf(" %s | | %.3f | |", r.failure.c_str(), r.cpu_seconds);
      }
      const double published = k == 4 ? c.cpu_4 : c.cpu_16;
      figure(" %.2f |", published);
      figure(" %.0f |", published / p.cpu_seconds);
      std::printf(" %s |\n", p.space.c_str());
      std::fflush(stdout);
      if (p.feasible) gaps_real.push_back(p.gap);
    }
  }
  if (times.empty()) return;
  std::printf("\nTime ratio: least %.4f, median %.3f. CPU ratio: least %.2f, median %.2f.\n",
              *std::min_element(times.begin(), times.end()), median(times),
              *std::min_element(cpus.begin(), cpus.end()), median(cpus));
}

// An input of dnn-partitioning as its programs take it: the cost of an edge is used as it stands,
// whatever its unit (seconds in some files; graph::read_graph puts that right).
MaxLoadProblem read_max_load(const std::string& file) {
  const auto json = nlohmann::json::parse(read_file(file));
  MaxLoadProblem p;
  p.memory = json.at("maxSizePerFPGA");
  p.accelerators = json.at("maxFPGAs");
  p.cpus = json.at("maxCPUs");
  std::map<int64_t, int> number;
  for (const auto& n : json.at("nodes")) {
    number[n.at("id")] = static_cast<int>(p.nodes.size());
    MaxLoadProblem::Node& node = p.nodes.emplace_back();
    node.accelerator_time = n.at("fpgaLatency");
    node.cpu_time = n.at("cpuLatency");
    node.bytes = n.at("size");
    const auto flag = [&](const char* key) {
      return n.at(key).is_boolean() ? n.at(key).get<bool>() : n.at(key).get<int>() != 0;
    };
    node.on_accelerator = flag("supportedOnFpga");
    node.backward = flag("isBackwardNode");
    node.colour = n.value("colorClass", -1);
  }
  for (const auto& e : json.at("edges")) {
    const int from = number.at(e.at("sourceId"));
    p.edges.emplace_back(from, number.at(e.at("destId")));
    p.nodes[from].transfer = e.at("cost");
  }
  return p;
}

// Contiguous placement for the least maximum load (Tarnawski et al., NeurIPS 2020).
void partitioning(const std::string& only) {
  std::printf(
      "\n| graph | operators | groups | downsets | accelerators + CPUs | published ms | ours ms | "
      "proven bound | published CPU s | ours CPU s |\n|---|---|---|---|---|---|---|---|---|---|\n");
  struct Case {
    const char* file;
    double published;  // 0: not run
    double cpu;
  };
  const std::string folder = kData + "dnn-partitioning/throughput-inputs/";
  for (const Case& c :
       {Case{"LayerGraphs/bert24_training", 41.75, 0.00},
        Case{"LayerGraphs/resnet50_training", 78.6, 0.11},
        Case{"LayerGraphs/gnmt_inference", 32.91, 9.7},
        Case{"LayerGraphs/gnmt_training", 107.0, 17.3},
        Case{"OperatorGraphs/bert_l-3_inference", 27.9, 0.5},
        Case{"OperatorGraphs/bert_l-3_training", 65.3, 3.3},
        Case{"OperatorGraphs/bert_l-6_inference", 29.6, 1.8},
        Case{"OperatorGraphs/bert_l-6_training", 72.9, 12.1},
        Case{"OperatorGraphs/bert_l-12_inference", 147.5, 9.5},
        Case{"OperatorGraphs/resnet50_inference", 124.3, 0.08},
        Case{"LayerGraphs/bert24_inference", 0, 0}, Case{"LayerGraphs/resnet50_inference", 0, 0},
        Case{"LayerGraphs/inceptionv3_inference", 0, 0},
        Case{"LayerGraphs/inceptionv3_training", 0, 0},
        Case{"OperatorGraphs/resnet50_training", 0, 0},
        Case{"OperatorGraphs/bert_L-12_training", 0, 0}}) {
    if (!only.empty() && std::string(c.file).find(only) == std::string::npos) continue;
    const MaxLoadProblem p = read_max_load(folder + c.file + ".json");
    const MaxLoadResult r = max_load_search(p);
    std::printf("| %s | %zu | %ld | %ld | %d + %d |", c.file, p.nodes.size(),
                static_cast<long>(r.groups), static_cast<long>(r.downsets), p.accelerators, p.cpus);
    figure(" %.6g |", c.published);
    if (r.feasible) {
      std::printf(" %.6g | %.6g |", r.load, r.lower_bound);
    } else {
      std::printf(" %s | |", r.failure.c_str());
    }
    if (c.published > 0) {
      std::printf(" %.2f |", c.cpu);
    } else {
      std::printf(" |");
    }
    std::printf(" %.2f |\n", r.cpu_seconds);
    std::fflush(stdout);
  }
}

void scale(const char* svg) {
  std::printf(
      "\n| graph | operators | devices | GB each | batch | stages | simulated s | best by the "
      "formula s | gap %% | CPU s "
      "|\n|---|---|---|---|---|---|---|---|---|---|\n");
  struct Case {
    std::string spec;
    int devices;
    double memory;
    int64_t batch;
  };
  std::vector<Case> cases = {
      {"chain:1000", 1024, 16e9, 4096},
      {"branches:8,120,40", 1024, 16e9, 4096},
      {"gpt:layers=128,hidden=25600,heads=160,sequence=2048,whole_layers=1", 4096, 80e9, 2048},
  };
  std::vector<std::pair<double, double>> points;
  for (int n : {100, 300, 1000, 3000, 10000}) {
    cases.push_back({"chain:" + std::to_string(n), 1024, 80e9, 4096});
  }
  for (const Case& c : cases) {
    const graph::Graph g = graph::build_graph(c.spec);
    DeviceGroup group;
    group.memory = c.memory;
    const Devices devices = uniform_devices(c.devices, 8, group);
    PlannerOptions options;
    options.batch = c.batch;
    options.time_limit = 60;
    const Planned p = make_plan(g, devices, options);
    std::printf("| %s | %zu | %d | %g | %ld | %zu | %.5g | %.5g | %.1f | %.2f |\n", c.spec.c_str(),
                g.ops.size(), c.devices, c.memory / 1e9, static_cast<long>(c.batch),
                p.plan.stages.size(), p.simulated_seconds, p.best_formula_seconds, 100 * p.gap,
                p.cpu_seconds);
    std::fflush(stdout);
    if (c.memory == 80e9 && c.devices == 1024) points.emplace_back(g.ops.size(), p.cpu_seconds);
  }
  if (svg == nullptr) return;
  std::ofstream out(svg);
  out << "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 420 260\" "
         "font-family=\"sans-serif\" "
         "font-size=\"11\">\n<title>CPU seconds of the planner against operators</title>\n";
  const auto x = [](double n) { return 60 + 160 * (std::log10(n) - 2); };
  const auto y = [](double s) { return 160 - 55 * std::log10(s); };
  for (int n : {100, 1000, 10000}) {
    out << "<path d=\"M" << x(n) << " 40V220\" stroke=\"#ccc\"/><text x=\"" << x(n)
        << "\" y=\"235\" text-anchor=\"middle\">" << n << "</text>\n";
  }
  for (double s : {0.1, 1.0, 10.0}) {
    out << "<path d=\"M60 " << y(s) << "H390\" stroke=\"#ccc\"/><text x=\"54\" y=\"" << y(s) + 4
        << "\" text-anchor=\"end\">" << s << " s</text>\n";
  }
  out << "<path fill=\"none\" stroke=\"#06c\" stroke-width=\"2\" d=\"";
  for (size_t i = 0; i < points.size(); ++i) {
    out << (i == 0 ? "M" : "L") << x(points[i].first) << " " << y(points[i].second);
  }
  out << "\"/>\n<text x=\"60\" y=\"24\">CPU time, chains of operators on 1,024 devices</text>\n"
         "<text x=\"225\" y=\"252\" text-anchor=\"middle\">operators</text>\n</svg>\n";
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string what = argc > 1 ? argv[1] : "";
    if (what.empty() || what == "models") models();
    if (what.empty() || what == "alike") alike(what.empty() || argc < 3 ? "" : argv[2]);
    if (what.empty() || what == "piper") {
      const bool some = what == "piper";
      piper(some && argc > 2 ? argv[2] : "", some && argc > 3 ? std::atoi(argv[3]) : 0);
    }
    if (what.empty() || what == "pipedream") {
      pipedream(what.empty() || argc < 3 ? "" : argv[2]);
    }
    if (what.empty() || what == "partitioning") {
      partitioning(what.empty() || argc < 3 ? "" : argv[2]);
    }
    if (what.empty() || what == "scale") scale(argc > 2 ? argv[2] : nullptr);
    if (!gaps_real.empty()) {
      std::printf("\nGap on the real graphs: median %.3f %%.\n", 100 * median(gaps_real));
    }
  } catch (const Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
