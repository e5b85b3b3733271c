#include "laboratory.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <new>
#include <set>
#include <sstream>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <sys/mman.h>

#include "../elastic_programs.h"
#include "ductile/base/error.h"
#include "ductile/link/testing/test_model.h"
#include "ductile/run/json_lines.h"

namespace ductile::injection {
namespace {

using server::testing::EmulatedHosts;
using testing::Program;
using namespace std::chrono_literals;

constexpr int64_t kSteps = 60, kCheckpointSteps = 10, kVirtualRanks = 4;
constexpr auto kDeadline = 240s;  // a bound on hanging, no measure of anything
constexpr auto kGrace = 10s;      // for the last process to vanish

// What the test and the processes of one job look at together.
class MappedBoard {
 public:
  MappedBoard(const fs::path& file, const fs::path& root, const Point* point) {
    const int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ::ftruncate(fd, sizeof(Board)) != 0) fail_errno(file.string(), errno);
    void* mapped = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ::close(fd);
    if (mapped == MAP_FAILED) fail_errno(file.string() + ": mmap", errno);
    board_ = new (mapped) Board{};
    std::snprintf(board_->root, sizeof board_->root, "%s", root.c_str());
    if (point == nullptr) return;
    board_->role = point->role;
    board_->call = point->call;
    board_->first = point->first;
    board_->times = point->times;
    board_->error = point->error;
  }
  MappedBoard(const MappedBoard&) = delete;
  MappedBoard& operator=(const MappedBoard&) = delete;
  ~MappedBoard() { ::munmap(board_, sizeof(Board)); }
  Board* operator->() const { return board_; }

 private:
  Board* board_;
};

// Whatever was started with one of these boards in its environment.
std::vector<pid_t> processes_with(const std::vector<fs::path>& boards) {
  std::vector<pid_t> pids;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file(entry.path() / "environ", std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    const bool is_one = std::any_of(boards.begin(), boards.end(), [&](const fs::path& board) {
      const std::string variable = fmt::format("{}={}", kBoardVariable, board.string());
      return text.find(variable + '\0') != std::string::npos || text.ends_with(variable);
    });
    if (is_one) pids.push_back(std::stoi(name));
  }
  return pids;
}

std::string command_line(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/cmdline", pid), std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  std::replace(text.begin(), text.end(), '\0', ' ');
  return text;
}

// The newest step whose manifest lies in `run`; -1: none.
int64_t newest_manifest(const fs::path& run) {
  int64_t newest = -1;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(run / "checkpoints" / "manifests", none)) {
    const std::string stem = entry.path().stem().string();
    if (entry.path().extension() == ".json" && stem.starts_with("step-"))
      newest = std::max<int64_t>(newest, std::stoll(stem.substr(5)));
  }
  return newest;
}

// What the diary says, in its order: -1 - S for "goes on from step S", N for "step N is published".
std::vector<int64_t> course_of(const fs::path& run, bool several) {
  std::vector<int64_t> course;
  run::for_each_json_line(run / "events.jsonl", [&](const nlohmann::json& line) {
    const std::string kind = line.value("kind", ""), event = line.value("event", ""),
                      text = line.value("text", "");
    long long step = 0;
    if (several && event == "checkpoint" && std::sscanf(text.c_str(), "of step %lld", &step) == 1)
      course.push_back(step);
    if (several && event == "generation" &&
        std::sscanf(text.c_str(), "generation %*d from step %lld", &step) == 1)
      course.push_back(-1 - step);
    if (!several && kind == "checkpoint") course.push_back(line.value("step", int64_t{0}));
    if (!several && (kind == "start" || kind == "resume"))
      course.push_back(-1 - line.value("step", int64_t{0}));
  });
  return course;
}

std::vector<std::string> temporary_files(const fs::path& run) {
  std::vector<std::string> found;
  std::error_code none;
  for (const auto& entry : fs::recursive_directory_iterator(run, none)) {
    const std::string within = fs::relative(entry.path(), run).string();
    const bool temporary = within.find(".tmp") != std::string::npos ||
                           within.starts_with("checkpoints/tmp/") || within == "control.sock";
    if (temporary) found.push_back(within);
  }
  return found;
}

// Token files with something to learn.
void write_tokens(const fs::path& folder) {
  std::string tokens;  // little-endian words below 64
  for (int i = 0, state = 1; i < 8192; ++i) {
    state = (state * 5 + i % 7) % 64;
    tokens += {static_cast<char>(state), 0};
  }
  fs::create_directories(folder);
  write_file_atomic(folder / "train.bin", tokens);
  write_file_atomic(folder / "test.bin", tokens.substr(0, 1024));
}

std::vector<std::string> job_words(const fs::path& data) {
  const std::vector<std::string> sets = {
      "data.format=tokens",
      "data.path=" + (data / "train.bin").string(),
      "data.test_path=" + (data / "test.bin").string(),
      "data.tokens.sequence_length=16",
      "model.name=gpt",
      "model.layers=1",
      "model.heads=2",
      "model.dim=16",
      "model.vocab_size=64",
      "optimizer.lr=0.003",
      "train.batch_size=8",
      "train.threads=1",
      fmt::format("train.max_steps={}", kSteps),
      fmt::format("train.virtual_ranks={}", kVirtualRanks),
      "checkpoint.every_seconds=0",
      fmt::format("checkpoint.every_steps={}", kCheckpointSteps)};
  std::vector<std::string> words;
  for (const std::string& set : sets) words.insert(words.end(), {"--set", set});
  return words;
}

}  // namespace

const std::vector<JobKind>& job_kinds() {
  static const std::vector<const char*> kProbes = {"train.rate_control=lrtuner",
                                                   "train.lrtuner.every_epochs=0.1"};
  static const std::vector<const char*> kChoice = {"train.method=selective",
                                                   "train.selective.first_epochs=0"};
  static const std::vector<const char*> kSharded = {"optimizer.name=schedule_free",
                                                    "train.shard_optimizer=true"};
  static const std::vector<JobKind> kinds = {
      {"plain", false, false, true, Begin::anew, 2},
      {"plain-resumed", false, false, true, Begin::half_done, 2},
      {"workers", true, false, false, Begin::anew, 4},
      {"workers-resumed", true, false, false, Begin::half_done, 4},
      {"workers-adopted", true, false, false, Begin::leaderless, 3},
      {"hosts", true, true, false, Begin::anew, 3},
      {"hosts-resumed", true, true, false, Begin::half_done, 3},
      {"hosts-adopted", true, true, false, Begin::leaderless, 2},
      {"real-workers", true, false, true, Begin::anew, 1},
      {"real-workers-resumed", true, false, true, Begin::half_done, 1},
      {"lrtuner", true, false, true, Begin::anew, 1, kProbes},
      {"lrtuner-resumed", true, false, true, Begin::half_done, 1, kProbes},
      {"selective", true, false, true, Begin::anew, 1, kChoice},
      {"selective-adopted", true, false, true, Begin::leaderless, 1, kChoice},
      {"sharded", true, false, true, Begin::anew, 1, kSharded},
      {"sharded-resumed", true, false, true, Begin::half_done, 1, kSharded},
  };
  return kinds;
}

// Kinds of the same name here come to the same result.
static std::string job_of(const JobKind& kind) {
  return fmt::format("{} {}", kind.real ? "real" : "test", fmt::join(kind.sets, " "));
}

const JobKind& job_kind(const std::string& name) {
  for (const JobKind& kind : job_kinds())
    if (name == kind.name) return kind;
  fail(ErrorCode::invalid_argument, "there is no small job '{}'", name);
}

// One run directory, and what is done with it.
class Laboratory::Trial {
 public:
  Trial(const Laboratory& laboratory, const JobKind& kind, int number)
      : laboratory_(laboratory),
        kind_(kind),
        run_(laboratory.root_.path() / std::to_string(number)),
        aside_(laboratory.aside_.path() / std::to_string(number)) {
    fs::create_directories(aside_);
    if (kind.begin == Begin::half_done)
      fs::copy(half_of(kind), run_, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  }
  ~Trial() {
    std::error_code ignored;
    fs::remove_all(run_, ignored);
    fs::remove_all(aside_, ignored);
  }

  const fs::path& run() const { return run_; }
  std::string log() const { return fs::exists(log_) ? read_file(log_) : ""; }

  // What comes before the command that is to be disturbed.
  void lead_up() {
    if (kind_.begin != Begin::leaderless) return;
    start(false, nullptr);
    wait_for_checkpoints();
    program_->kill();
  }
  void wait_for_checkpoints() {
    while (program_->running() && newest_manifest(run_) < 2 * kCheckpointSteps)
      std::this_thread::sleep_for(1ms);
  }
  // The command of a user, whose processes are counted, and struck at `point`. `go_on`: with what
  // is there. False: there was no end to it.
  bool start_and_wait(bool go_on, const Point* point) {
    start(go_on, point);
    return wait();
  }
  bool disturbed(const Point* point) { return start_and_wait(kind_.begin != Begin::anew, point); }
  void start(bool go_on, const Point* point) {
    board_file_ = aside_ / fmt::format("board{}", ++commands_);
    log_ = aside_ / fmt::format("log{}", commands_);
    boards_.push_back(board_file_);
    board_ = std::make_unique<MappedBoard>(board_file_, laboratory_.root_.path(), point);
    program_ = std::make_unique<Program>(words(go_on), log_);
  }
  bool wait() {
    const auto deadline = std::chrono::steady_clock::now() + kDeadline;
    while (program_->running() && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(5ms);
    return !program_->running();
  }
  // What still runs of it, after a while; ended by this.
  std::string left_behind() {
    const auto deadline = std::chrono::steady_clock::now() + kGrace;
    std::vector<pid_t> pids = processes_with(boards_);
    while (!pids.empty() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(10ms);
      pids = processes_with(boards_);
    }
    std::string text;
    for (const pid_t pid : pids) {
      text += fmt::format("\n    {} {}", pid, command_line(pid));
      ::kill(pid, SIGKILL);
    }
    return text;
  }
  void interrupt() { ::kill(program_->pid(), SIGINT); }
  int code() const { return program_->exit_code(); }
  const MappedBoard& board() const { return *board_; }

  Counts counts() const {
    Counts counts;
    for (uint32_t r = 0; r < kNumRoles; ++r)
      for (uint32_t c = 0; c < kNumCalls; ++c) counts.calls[r][c] = (*board_)->counts[r][c];
    return counts;
  }

  // The trained weights.
  std::string result() const {
    if (kind_.real) return testing::model_of(run_);
    return std::to_string(link::testing::read_checkpoint(run_ / "checkpoints", kSteps).value);
  }

  static fs::path half_of(const Laboratory& laboratory, const JobKind& kind) {
    return laboratory.root_.path() / fmt::format("half-{}", kind.name);
  }

 private:
  fs::path half_of(const JobKind& kind) const { return half_of(laboratory_, kind); }

  std::vector<std::string> words(bool go_on) const {
    std::vector<std::string> words;
    if (kind_.hosts) words = laboratory_.hosts_.prefix(0);
    words.insert(words.begin(), {"/usr/bin/env", "LD_PRELOAD=" DUCTILE_INJECTOR,
                                 fmt::format("{}={}", kBoardVariable, board_file_.string()),
                                 "OMP_WAIT_POLICY=PASSIVE"});
    if (!kind_.real) words.insert(words.begin() + 1, "DUCTILE_WORKER=" DUCTILE_TEST_WORKER);
    for (const char* word : {DUCTILE_BINARY_DIR "/bin/ductile", "-q", "train"})
      words.emplace_back(word);
    if (go_on) {
      words.insert(words.end(), {"--resume", run_.string()});
      // Where it failed before it had workers, one process goes on with it, which the test worker
      // cannot be.
      if (!kind_.real && !fs::exists(run_ / "membership.json"))
        words.insert(words.end(), {"--workers", "3"});
      return words;
    }
    words.insert(words.end(), {"--out", run_.string()});
    const std::vector<std::string> job = job_words(laboratory_.root_.path() / "data");
    words.insert(words.end(), job.begin(), job.end());
    for (const char* set : kind_.sets) words.insert(words.end(), {"--set", set});
    if (kind_.several) words.insert(words.end(), {"--workers", "3"});
    if (kind_.hosts) {
      const EmulatedHosts& hosts = laboratory_.hosts_;
      const std::string list =
          fmt::format("{}={}:2,{}={}:2", hosts.name(1), EmulatedHosts::address(1), hosts.name(2),
                      EmulatedHosts::address(2));
      words.insert(words.end(), {"--hosts", list, "--launcher", EmulatedHosts::launcher()});
    }
    return words;
  }

  const Laboratory& laboratory_;
  const JobKind& kind_;
  const fs::path run_, aside_;
  int commands_ = 0;
  fs::path board_file_, log_;
  std::vector<fs::path> boards_;  // of all commands
  std::unique_ptr<MappedBoard> board_;
  std::unique_ptr<Program> program_;
};

Laboratory::Laboratory() { write_tokens(root_.path() / "data"); }

Laboratory::~Laboratory() = default;

void Laboratory::prepare(const JobKind& kind) {
  if (kind.begin == Begin::half_done) {
    // Stopped by its user as soon as it has something to go on from.
    JobKind whole = kind;
    whole.begin = Begin::anew;
    while (true) {
      Trial trial(*this, whole, trials_++);
      trial.start(false, nullptr);
      trial.wait_for_checkpoints();
      trial.interrupt();
      trial.wait();
      if (trial.code() == 0) continue;  // it was quicker
      if (trial.code() != 130)
        fail(ErrorCode::internal, "{}: an undisturbed job: {}", kind.name, trial.log());
      trial.left_behind();
      fs::rename(trial.run(), Trial::half_of(*this, kind));
      break;
    }
  }
  Trial trial(*this, kind, trials_++);
  trial.lead_up();
  if (!trial.disturbed(nullptr) || trial.code() != 0)
    fail(ErrorCode::internal, "{}: an undisturbed job: {}", kind.name, trial.log());
  counts_[kind.name] = trial.counts();
  const std::string result = trial.result();
  const auto [known, is_new] = results_.try_emplace(job_of(kind), result);
  if (known->second != result)
    fail(ErrorCode::internal, "{}: an undisturbed job has other bits", kind.name);
}

namespace {

// What a user reads when a command fails: why, and about what.
void judge_text(const std::string& text, const Point& point, std::vector<std::string>& complaints) {
  if (text.find_first_not_of(" \n") == std::string::npos) {
    complaints.emplace_back("failed without a word");
    return;
  }
  for (const char* raw : {"unexpected", "terminate called", "json.exception", "what():", "Success",
                          "filesystem error", "basic_string"})
    if (text.find(raw) != std::string::npos)
      complaints.push_back(fmt::format("the text has '{}' in it", raw));
  const bool has_reason = point.error == kShort || point.error == EINTR ||
                          text.find(std::strerror(point.error)) != std::string::npos;
  if (!has_reason) complaints.emplace_back("the text does not name the error");
}

// No checkpoint that was known to be published is undercut by where the job goes on.
void judge_course(const std::vector<int64_t>& course, int64_t known, const char* when,
                  std::vector<std::string>& complaints) {
  for (const int64_t event : course) {
    if (event >= 0) {
      known = std::max(known, event);
    } else if (-1 - event < known) {
      complaints.push_back(fmt::format("{} it went on from step {}, though step {} was published",
                                       when, -1 - event, known));
    }
  }
}

}  // namespace

Verdict Laboratory::try_point(const Point& point) {
  const JobKind& kind = job_kind(point.job);
  int number = 0;
  {
    const std::lock_guard lock(mutex_);
    number = trials_++;
  }
  Verdict verdict;
  std::vector<std::string>& complaints = verdict.complaints;
  Trial trial(*this, kind, number);
  const fs::path& run = trial.run();
  trial.lead_up();
  const size_t before = course_of(run, kind.several).size();
  const int64_t known = newest_manifest(run);
  const auto since = [&](size_t begin) {
    std::vector<int64_t> course = course_of(run, kind.several);
    course.erase(course.begin(),
                 course.begin() + static_cast<ptrdiff_t>(std::min(begin, course.size())));
    return course;
  };

  const bool ended = trial.disturbed(&point);
  if (!ended) complaints.push_back("no end to it");
  verdict.struck = trial.board()->struck > 0;
  verdict.what = trial.board()->what;
  // Workers whose new controller failed wait for the next one.
  const bool wait_for_another = kind.begin == Begin::leaderless && ended && trial.code() != 0;
  if (!wait_for_another)
    if (const std::string left = trial.left_behind(); !left.empty())
      complaints.push_back("left behind:" + left);
  verdict.code = trial.code();
  const std::string text = trial.log();
  judge_course(since(before), known, "disturbed,", complaints);
  // What could not be removed since that was what failed stays until the next time.
  if (point.call != kUnlink && !wait_for_another && fs::exists(run / "control.sock"))
    complaints.emplace_back("control.sock was left behind");

  if (ended && verdict.code != 0) {
    // 1: the command failed, 3: the job did. Nobody's words were wrong, but for an address that
    // cannot be found out and is asked for; and nobody interrupted it.
    const bool asks = verdict.code == 2 && text.find("Say it with --listen") != std::string::npos;
    if (verdict.code != 1 && verdict.code != 3 && !asks)
      complaints.push_back(fmt::format("exit code {}", verdict.code));
    judge_text(text, point, complaints);
  }
  if (verdict.code != 0) {
    const int64_t published = std::max(known, newest_manifest(run));
    const size_t then = course_of(run, kind.several).size();
    const bool there = fs::exists(run);
    if (!trial.start_and_wait(there, nullptr)) complaints.push_back("resumed: no end to it");
    if (const std::string left = trial.left_behind(); !left.empty())
      complaints.push_back("resumed: left behind:" + left);
    if (trial.code() != 0)
      complaints.push_back(fmt::format("resumed: exit code {}: {}", trial.code(), trial.log()));
    judge_course(since(then), published, "resumed,", complaints);
  }
  try {
    if (trial.code() == 0 && trial.result() != results_.at(job_of(kind)))
      complaints.emplace_back("other bits");
  } catch (const std::exception& e) {
    complaints.push_back(fmt::format("no result: {}", e.what()));
  }
  const bool clean = point.call != kUnlink || verdict.code != 0;
  if (const auto files = temporary_files(run); trial.code() == 0 && clean && !files.empty())
    complaints.push_back(fmt::format("temporary files are left: {}", fmt::join(files, ", ")));
  if (!complaints.empty())
    complaints.push_back(fmt::format("exit code {}, and it said: {}", verdict.code, text));
  return verdict;
}

}  // namespace ductile::injection
