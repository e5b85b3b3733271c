#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include <glob.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/isa.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/machine.h"
#include "ductile/cli/commands.h"
#include "ductile/cli/python_job.h"
#include "ductile/cli/version.h"
#include "ductile/page/numbers.h"
#include "ductile/page/terminal.h"
#include "ductile/process/find_program.h"
#include "ductile/process/worker.h"
#include "ductile/run/blas_kernels.h"
#include "ductile/server/node_devices.h"

namespace ductile::cli {
namespace {

using Json = nlohmann::ordered_json;

std::vector<std::string> paths_like(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> paths;
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  }
  globfree(&found);
  return paths;
}

// A library in the usual folders, links resolved to the file that carries the full version.
std::optional<fs::path> find_library(const std::string& name) {
  for (const std::string folder :
       {"/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib", "/lib/*-linux-gnu"}) {
    for (const std::string& path : paths_like(folder + "/" + name)) {
      std::error_code error;
      const fs::path resolved = fs::canonical(path, error);
      if (!error) return resolved;
    }
  }
  return std::nullopt;
}

// "1.13" of libtorch_cpu.so.1.13
std::string version_of(const fs::path& library) {
  const std::string name = library.filename().string();
  const size_t so = name.find(".so.");
  return so == std::string::npos ? "unknown version" : name.substr(so + 4);
}

// What a program prints, or nothing where it cannot be run or fails. `command` is fixed text or
// quoted by shell_word().
std::optional<std::string> output_of(const std::string& command) {
  FILE* pipe = popen((command + " 2>/dev/null").c_str(), "re");
  if (pipe == nullptr) return std::nullopt;
  std::string text;
  std::array<char, 4096> block;
  for (size_t n; (n = fread(block.data(), 1, block.size(), pipe)) > 0;) {
    text.append(block.data(), n);
  }
  if (pclose(pipe) != 0) return std::nullopt;
  return text;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// The vectors of our kernels and what multiplies bf16 in them, or why there are none.
Json kernel_facts() {
  Json facts;
  try {
    facts["vectors"] = may_use(IsaLevel::avx512) ? "avx512"
                       : may_use(IsaLevel::avx2) ? "avx2"
                                                 : "baseline";
    facts["bf16_products"] = bf16_products();
  } catch (const Error& error) {
    facts["error"] = error.what();
  }
  return facts;
}

Json cpu_facts() {
  const CpuShare share = cpu_share();
  const CpuModel model = cpu_model();
  Json features = Json::array();
  for (const char* flag : {"avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_fp16",
                           "amx_bf16", "asimd", "sve", "bf16"}) {
    if (model.has(flag)) features.push_back(flag);
  }
  const Json kernels = kernel_facts();
  const bool native_bf16 = kernels.value("bf16_products", "none") != "none";
  return {{"model", model.name},
          {"online", share.online},
          {"affinity", share.affinity},
          {"quota", share.quota > 0 ? Json(share.quota) : Json(nullptr)},
          {"usable", share.usable()},
          {"features", features},
          {"bf16", native_bf16 ? "native" : "emulated"},
          {"kernels", kernels}};
}

Json memory_facts() {
  const MemoryShare share = memory_share();
  return {{"total", share.total},
          {"available", share.available},
          {"limit", share.limit > 0 ? Json(share.limit) : Json(nullptr)}};
}

Json library_facts(const std::optional<fs::path>& library) {
  if (!library) return nullptr;
  return {{"version", version_of(*library)}, {"path", library->string()}};
}

// UCX's library carries no version in its name; its pkg-config file does.
Json ucx_facts() {
  Json facts = library_facts(find_library("libucp.so.0"));
  if (facts.is_null()) return facts;
  facts["version"] = "unknown version";
  for (const std::string& file : paths_like("/usr/lib/*/pkgconfig/ucx.pc")) {
    const std::string text = read_file(file);
    const size_t at = text.find("Version: ");
    if (at != std::string::npos) facts["version"] = first_line(text.substr(at + 9));
  }
  return facts;
}

// Whether this build can use NCCL between GPUs, and the library that it would then find.
Json nccl_facts() {
  const Json found = library_facts(find_library("libnccl.so.2"));
  return {{"built_in", DUCTILE_HAS_NCCL != 0}, {"library", found}};
}

// BLAS as the dynamic linker finds it: Debian's alternatives link libblas.so.3 to one of several.
Json blas_facts() {
  const auto library = find_library("libblas.so.3");
  if (!library) return nullptr;
  const std::string path = library->string();
  std::string name = "reference";
  for (const auto& [part, kind] : {std::pair("openblas-pthread", "openblas (pthread)"),
                                   {"openblas-openmp", "openblas (openmp)"},
                                   {"openblas-serial", "openblas (serial)"},
                                   {"openblas", "openblas"},
                                   {"blis", "blis"},
                                   {"atlas", "atlas"},
                                   {"mkl", "mkl"}}) {
    if (path.find(part) != std::string::npos) {
      name = kind;
      break;
    }
  }
  return {{"name", name}, {"path", path}};
}

// What the worker says of itself: only it links torch.
Json worker_facts() {
  Json facts;
  try {
    const std::string program = process::find_worker().string();
    facts["path"] = program;
    const auto text =
        output_of("OMP_WAIT_POLICY=PASSIVE " + page::shell_word(program) + " --describe");
    facts["runs"] = text.has_value();
    if (text) {
      const Json said = parse_json<Json>(*text);
      if (said.is_object()) facts["says"] = said;
    } else {
      const auto why = output_of("{ " + page::shell_word(program) + " --describe 2>&1; true; }");
      facts["error"] = first_line(why.value_or(""));
    }
  } catch (const Error&) {
    return nullptr;
  }
  return facts;
}

// A torch that lies in no usual folder, such as pip's: the worker says what it is linked with.
void add_torch_of_worker(Json& facts) {
  const Json& worker = facts["worker"];
  if (!facts["torch"].is_null() || !worker.is_object() || !worker.contains("says")) return;
  facts["torch"] = {{"version", worker["says"].value("torch", "unknown version")},
                    {"path", worker["path"]}};
}

// Whether the worker's torch brings a BLAS of its own.
bool has_own_blas(const Json& worker) {
  return worker.is_object() && worker.contains("says") && worker["says"].value("blas", "") == "MKL";
}

// How jobs see this machine. What the files of NVIDIA's driver do not say, its program may.
Json topology_facts() {
  Json facts = server::to_json(server::NodeDevices(1).hardware());
  if (!process::find_program("nvidia-smi")) return facts;
  const std::string said =
      output_of("nvidia-smi --query-gpu=pci.bus_id,memory.total --format=csv,noheader,nounits")
          .value_or("");
  std::istringstream lines(said);
  for (std::string line; std::getline(lines, line);) {
    const size_t comma = line.find(", ");
    if (comma == std::string::npos || comma < 12) continue;
    std::string id = line.substr(comma - 12, 12);  // its domain has eight digits
    for (char& c : id) c = c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c;
    for (Json& gpu : facts["gpus"])
      if (gpu["id"] == id) gpu["memory"] = std::atoll(line.c_str() + comma + 2) << 20;
  }
  return facts;
}

Json compiler_facts() {
  Json tools = Json::object();
  for (const char* name : {"g++", "cmake", "ninja", "ccache", "mold"}) {
    const auto program = process::find_program(name);
    if (!program) {
      tools[name] = nullptr;
      continue;
    }
    tools[name] = first_line(
        output_of(page::shell_word(program->string()) + " --version").value_or("does not run"));
  }
  return tools;
}

// The programs that this one starts, and which lie beside it; null: it is not there.
Json program_facts() {
  std::error_code unknown;
  const fs::path here = fs::read_symlink("/proc/self/exe", unknown).parent_path();
  Json facts = Json::object();
  for (const char* name : {"ductile-fleet", "ductile-keeper"}) {
    const fs::path program = here / name;
    facts[name] = access(program.c_str(), X_OK) == 0 ? Json(program.string()) : Json(nullptr);
  }
  return facts;
}

// Where the extension of the package for Python is that Python jobs train with: beside the worker,
// as ductile-python-worker looks for it, or where Python itself looks; null: nowhere.
Json python_facts(const Json& worker) {
  std::vector<std::string> folders;
  if (worker.is_object()) {
    const std::string bin = fs::path(worker["path"].get<std::string>()).parent_path().string();
    folders = {bin + "/../python/ductile", bin + "/../lib/python3*/site-packages/ductile",
               bin + "/../ductile"};
  }
  std::optional<std::string> python;
  try {
    python = find_interpreter("");
  } catch (const Error&) {  // there is none
  }
  if (python) {
    const auto found =
        output_of(page::shell_word(*python) +
                  " -c \"import importlib.util as u; print(u.find_spec('ductile').origin or '')\"");
    if (found) folders.push_back(fs::path(first_line(*found)).parent_path().string());
  }
  Json facts = {{"interpreter", python ? Json(*python) : Json(nullptr)}, {"package", nullptr}};
  for (const std::string& folder : folders) {
    const auto extensions = paths_like(folder + "/_core*.so");
    if (extensions.empty()) continue;
    facts["package"] = fs::path(extensions.front()).parent_path().lexically_normal().string();
    break;
  }
  return facts;
}

// One thing that should be there and is not, and what installs it: a package of the system, or (of
// a program of Ductile's own) none.
struct Missing {
  std::string what, why, package;
  std::string command = {};  // where it is no package's
  std::string remedy() const {
    if (!command.empty()) return "in the source tree: " + command;
    return package.empty() ? fmt::format(
                                 "install Ductile again, or in the source tree: "
                                 "scripts/build release {}",
                                 what)
                           : "sudo apt-get install " + package;
  }
};

std::vector<Missing> find_missing(const Json& facts) {
  std::vector<Missing> missing;
  const auto need = [&](bool there, const char* what, const char* why, const char* package) {
    if (!there) missing.push_back({what, why, package});
  };
  need(!facts["worker"].is_null(), "ductile-worker", "it trains", "");
  const Json& programs = facts["programs"];
  need(!programs["ductile-fleet"].is_null(), "ductile-fleet",
       "services, plans, simulations and what one does with live jobs are in it", "");
  need(!programs["ductile-keeper"].is_null(), "ductile-keeper", "it runs the commands of a service",
       "");
  need(!facts["torch"].is_null(), "libtorch", "ductile-worker computes with it", "libtorch-dev");
  const Json& blas = facts["blas"];
  need(has_own_blas(facts["worker"]) ||
           (!blas.is_null() && blas["name"].get<std::string>() != "reference"),
       "an optimised BLAS", "the reference BLAS is many times slower", "libopenblas0-pthread");
  need(!facts["ucx"].is_null(), "UCX", "workers on several hosts talk through it", "libucx-dev");
  if (facts["python"]["package"].is_null())
    missing.push_back({"the package ductile for Python",
                       "`ductile train FILE.py:Job` and `ductile capture` need it", "",
                       "scripts/setup --tests && scripts/build release ductile ductile-worker "
                       "_core"});
  const bool has_gpus = std::ranges::any_of(
      facts["gpus"], [](const Json& gpu) { return gpu["trouble"].get<std::string>().empty(); });
  need(!has_gpus || facts["nccl"]["built_in"].get<bool>(), "NCCL",
       "GPUs of several workers sum through it, where Ductile is built with it", "libnccl-dev");
  const Json& tools = facts["tools"];
  need(!tools["g++"].is_null(), "g++", "builds Ductile and custom models", "g++");
  need(!tools["cmake"].is_null(), "cmake", "builds Ductile", "cmake");
  need(!tools["ninja"].is_null(), "ninja", "builds Ductile", "ninja-build");
  return missing;
}

// What is there and could be better.
std::vector<std::string> find_advice(const Json& facts) {
  std::vector<std::string> advice;
  const Json& worker = facts["worker"];
  if (worker.is_object() && worker.contains("says") &&
      worker["says"].value("blas_kernels", Json()).is_string()) {
    IsaLevel widest = IsaLevel::baseline;
    for (const IsaLevel level : {IsaLevel::avx2, IsaLevel::avx512})
      if (may_use(level)) widest = level;
    const auto core = worker["says"]["blas_kernels"].get<std::string>();
    if (const auto text = run::blas_advice(core, widest)) advice.push_back(*text);
  }
  return advice;
}

std::string kernels_text(const Json& kernels) {
  if (kernels.contains("error")) return kernels["error"].get<std::string>();
  return fmt::format("{}; products of bf16: {}", kernels["vectors"].get<std::string>(),
                     kernels["bf16_products"].get<std::string>());
}

std::string gpu_text(const Json& gpu) {
  std::string out = gpu["name"].get<std::string>();
  if (!gpu["memory"].is_null())
    out += fmt::format(", {}", page::as_bytes(gpu["memory"].get<double>()));
  if (!gpu["numa_node"].is_null())
    out += fmt::format(", NUMA node {}", gpu["numa_node"].get<int64_t>());
  if (const auto trouble = gpu["trouble"].get<std::string>(); !trouble.empty())
    out += fmt::format(" (not for jobs: {})", trouble);
  return out;
}

std::string topology_text(const Json& topology) {
  std::string out = server::cores_text(server::hardware_from(parse_json(dump_json(topology))));
  if (const auto trouble = topology["trouble"].get<std::string>(); !trouble.empty())
    out += fmt::format(" (each hardware thread counts as a core, since hwloc is no help: {})",
                       trouble);
  return out;
}

std::string python_text(const Json& python) {
  if (python["package"].is_null()) return "no package for jobs in Python";
  const Json& interpreter = python["interpreter"];
  return fmt::format("{} (the package: {})",
                     interpreter.is_null() ? "not found" : interpreter.get<std::string>(),
                     python["package"].get<std::string>());
}

// What the worker says of itself, in lines that a terminal has room for.
std::vector<std::string> worker_lines(const Json& worker) {
  constexpr size_t kLine = 80;
  std::vector<std::string> lines;
  if (!worker.is_object() || !worker.contains("says")) return lines;
  for (const auto& [key, value] : worker["says"].items()) {
    const std::string fact =
        fmt::format("{} {}", key, value.is_string() ? value.get<std::string>() : dump_json(value));
    if (lines.empty()) {
      lines.push_back(fact);
    } else if (lines.back().size() + fact.size() + 3 <= kLine) {  // two commas and a space
      lines.back() += ", " + fact;
    } else {
      lines.back() += ",";
      lines.push_back(fact);
    }
  }
  return lines;
}

void print_facts(Console& console, const Json& facts, const std::vector<Missing>& missing) {
  const Json& cpu = facts["cpu"];
  std::string cores =
      fmt::format("{} usable of {}", cpu["usable"].get<int>(), cpu["online"].get<int>());
  if (cpu["affinity"] != cpu["online"])
    cores += fmt::format(", affinity {}", cpu["affinity"].get<int>());
  if (!cpu["quota"].is_null())
    cores += fmt::format(", control-group quota {:.2f}", cpu["quota"].get<double>());
  std::string features;
  for (const auto& flag : cpu["features"]) features += " " + flag.get<std::string>();
  const Json& memory = facts["memory"];
  std::string bytes =
      fmt::format("{} free of {}", page::as_bytes(memory["available"].get<double>()),
                  page::as_bytes(memory["total"].get<double>()));
  if (!memory["limit"].is_null())
    bytes += ", control-group limit " + page::as_bytes(memory["limit"].get<double>());
  const auto library = [&](const char* name) -> std::string {
    const Json& found = facts[name];
    if (found.is_null()) return "not found";
    return fmt::format("{} ({})", found["version"].get<std::string>(),
                       found["path"].get<std::string>());
  };
  const Json& blas = facts["blas"];
  const Json& worker = facts["worker"];
  std::string worker_text = "not found";
  if (!worker.is_null()) {
    worker_text = worker["path"].get<std::string>();
    if (!worker["runs"].get<bool>())
      worker_text += fmt::format(" (does not run: {})", worker["error"].get<std::string>());
  }
  std::string gpus;
  for (const auto& gpu : facts["gpus"]) gpus += (gpus.empty() ? "" : "; ") + gpu_text(gpu);
  const Json& topology = facts["topology"];
  std::vector<std::vector<std::string>> rows = {
      {"ductile", facts["ductile"].get<std::string>()},
      {"system", facts["system"].get<std::string>()},
      {"processor", cpu["model"].get<std::string>()},
      {"cores", cores},
      {"topology", topology_text(topology)},
      {"features", features.empty() ? "none of note" : features.substr(1)},
      {"bf16", cpu["bf16"] == "native"
                   ? "native"
                   : "emulated: no bf16 instructions here, or none that DUCTILE_ISA allows"},
      {"kernels", kernels_text(cpu["kernels"])},
      {"memory", bytes},
      {"torch", library("torch")},
      {"blas", blas.is_null() ? "not found"
                              : fmt::format("{} ({})", blas["name"].get<std::string>(),
                                            blas["path"].get<std::string>())},
      {"worker", worker_text},
  };
  for (const std::string& line : worker_lines(worker)) rows.push_back({"", line});
  const std::vector<std::vector<std::string>> others = {
      {"python", python_text(facts["python"])},
      {"ucx", library("ucx")},
      {"nccl", facts["nccl"]["built_in"].get<bool>() ? "built in" : "not built in (DUCTILE_NCCL)"},
      {"gpus", gpus.empty() ? "none" : gpus},
  };
  rows.insert(rows.end(), others.begin(), others.end());
  for (const auto& [name, version] : facts["tools"].items()) {
    rows.push_back({name, version.is_null() ? "not found" : version.get<std::string>()});
  }
  console.print("{}", page::table(rows));
  for (const auto& advice : facts["advice"]) console.print("\n{}\n", advice.get<std::string>());
  if (missing.empty()) {
    console.print("\nNothing is missing.\n");
    return;
  }
  console.print("\nMissing:\n");
  std::string packages;
  for (const Missing& m : missing) {
    console.print("  {}: {}{}\n", m.what, m.why, m.package.empty() ? "; " + m.remedy() : "");
    if (!m.package.empty()) packages += " " + m.package;
  }
  if (!packages.empty()) console.print("Install with: sudo apt-get install{}\n", packages);
}

}  // namespace

ExitCode doctor(const DoctorCommand& command, Context& context) {
  utsname system{};
  uname(&system);
  Json facts;
  facts["ductile"] = version();
  facts["system"] = fmt::format("{} {} {}", system.sysname, system.release, system.machine);
  facts["cpu"] = cpu_facts();
  facts["memory"] = memory_facts();
  auto torch = find_library("libtorch_cpu.so.*");
  facts["torch"] = library_facts(torch ? torch : find_library("libtorch_cpu.so"));
  facts["blas"] = blas_facts();
  facts["worker"] = worker_facts();
  facts["programs"] = program_facts();
  facts["python"] = python_facts(facts["worker"]);
  add_torch_of_worker(facts);
  facts["ucx"] = ucx_facts();
  facts["nccl"] = nccl_facts();
  facts["topology"] = topology_facts();
  facts["gpus"] = facts["topology"]["gpus"];
  facts["tools"] = compiler_facts();
  facts["advice"] = find_advice(facts);
  const std::vector<Missing> missing = find_missing(facts);
  if (command.json) {
    facts["missing"] = Json::array();
    for (const Missing& m : missing) {
      facts["missing"].push_back({{"what", m.what}, {"why", m.why}, {"command", m.remedy()}});
    }
    context.console.print("{}\n", dump_json(facts, 2));
  } else {
    print_facts(context.console, facts, missing);
  }
  return kDone;
}

}  // namespace ductile::cli
