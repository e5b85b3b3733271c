#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ductile/base/files.h"
#include "ductile/control/membership.h"
#include "ductile/link/disk.h"
#include "ductile/link/job_end.h"
#include "ductile/link/publisher.h"
#include "ductile/run/diary.h"
#include "ductile/run/folder.h"

namespace ductile::link {

// What the control of a job commands besides the run directory. It is called from within
// JobDriver's methods, and may call add() and log().
class JobWorld {
 public:
  virtual ~JobWorld() = default;
  // If the worker cannot be started, it reports LaunchFailed with add().
  virtual void launch(const control::LaunchWorker& command) = 0;
  virtual void kill(const control::KillWorker& command) = 0;
  virtual void send(const control::Instruction& instruction) = 0;
  // Finds the workers that an earlier control left, and reports WorkerExited for those that are
  // certainly gone.
  virtual void adopt(const std::vector<control::WorkerStatus>& workers) = 0;
};

// What becomes of a request.
struct RequestAnswer {
  std::string refused;  // why it is not followed; empty: it is
  std::string waits;    // why it is followed only later; empty: it is followed now
};
using OnAnswer = std::function<void(const RequestAnswer&)>;

struct JobDriverOptions {
  fs::path run;
  control::MembershipOptions membership;
  int64_t keep_checkpoints = 2;
  std::function<void(const control::Note&)> on_note;  // may be empty
};

// Drives control::Membership over a run directory, whatever the world of its workers is: restores
// and saves its state (membership.json), publishes checkpoints, writes the control events and, at
// the end, `end` and the report.
//
// add() collects events, and drain() passes them to Membership. Until the state is saved, no
// further event is passed on and no command is carried out. One thread uses a driver; publishing
// has a thread of its own, and all else that touches the disk is left to `disk`.
class JobDriver {
 public:
  // The driver does all of it on its own thread where no disk is given.
  JobDriver(JobDriverOptions options, JobWorld& world, Disk* disk = nullptr);
  ~JobDriver();

  // What a run directory tells about its job.
  struct Found {
    std::shared_ptr<const nlohmann::json> state;  // null: none was saved
    std::vector<int64_t> checkpoints;
    run::Cost spent;
    run::DiaryEnd diaries;
  };

  // ---- the beginning
  // Reads the run directory; any thread. Throws data_loss if the state of the job is damaged or
  // missing.
  static Found look(const fs::path& run);
  // Restores the stored state of the job. Throws data_loss if it is damaged.
  void restore(const Found& found);
  void restore() { restore(look(options_.run)); }
  // Starts the job, or goes on with it. `workers` 0: as many as before, also where it had finished,
  // or 1. Throws invalid_argument if that many workers cannot share the job; or tells `on_answer`,
  // if given. A start that is refused so saves nothing.
  void start(int64_t workers, OnAnswer on_answer = {});

  // ---- the course; now() is from 0 on
  control::Time now() const;
  void listening() { heard_ = now(); }  // what has come until now is added next
  void add(control::Event event);
  void drain();
  // Does what has become due: another attempt to save, a Tick.
  void look_at_clock();
  // Takes results from the publisher; its fd is readable while there may be some.
  void take_published();
  int publisher_fd() const { return publisher_.fd(); }
  // For drain().
  bool has_work() const { return saved() && !ended_ && !(inbox_.empty() && asked_.empty()); }
  // The time at which look_at_clock() may have something to do, at most half a second from now.
  std::chrono::milliseconds patience() const;
  // Tells whether a request is followed, after what it brings about was saved and carried out, or
  // when it turns out that this cannot be saved now.
  void request(const control::Event& event, OnAnswer on_answer);
  // The same where the disk is the own thread's. Returns why the request is not followed, or not
  // yet; empty if it is followed.
  std::string request(const control::Event& event);
  void signal(int number);  // came to this process: written down

  // ---- the end
  bool over() const;     // finished, failed or preempted; workers may still be ending
  bool at_rest() const;  // and saved: nothing is left to do
  // Whether the state could not be saved for so long that the job ends without saving it.
  bool gives_up() const;
  // To be called after all workers were ended for that reason.
  JobEnd end_unsaved();
  // From now on no event is passed on and no command is carried out.
  JobEnd end(bool killed);
  // Writes the `end` event and the report, and then calls `on_written`. Call it once, at the very
  // end.
  void write_end(const JobEnd& end, std::function<void()> on_written = {});

  const control::Membership& membership() const { return *membership_; }
  const control::MembershipOptions& membership_options() const { return options_.membership; }
  const std::map<control::WorkerId, control::WorkerStatus>& reports() const { return reports_; }
  std::string why() const;
  void note(const control::Note& note);  // into the log, and to on_note
  void log(std::string_view event, const std::string& text);

 private:
  enum class Saving { none, under_way, failed };
  struct Asked {
    control::Event event;
    OnAnswer on_answer;
  };

  void begin(int64_t workers, OnAnswer on_answer);
  bool saved() const { return saving_ == Saving::none; }
  void apply(const std::vector<control::Event>& events);
  void handle(control::Outcome outcome);
  void save();
  void on_saved(const std::string& error);
  void answer(const RequestAnswer& answer);
  void carry_out(const std::vector<control::Command>& commands);
  void on(const control::LaunchWorker& command) { world_.launch(command); }
  void on(const control::KillWorker& command) { world_.kill(command); }
  void on(const control::SendInstruction& command);
  void on(const control::PublishCheckpoint& command);
  void on(const control::Release&) {}  // processes hold nothing once they are gone
  void on(const control::Note& command);
  std::string waits_for_disk() const;
  JobEnd end_here() const;
  double seconds() const;
  run::Cost cost() const;
  nlohmann::json stamped(std::string_view kind, nlohmann::json fields) const;
  void write_event(std::string_view kind, nlohmann::json fields);
  void note_published(int64_t step);
  void note_size();

  JobDriverOptions options_;
  JobWorld& world_;
  DiskHere here_;
  Disk& disk_;
  const run::RunFolder folder_;
  // Used by the disk's work alone, which may outlive the driver.
  const std::shared_ptr<run::Diary> events_;
  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  double seconds_before_ = 0;
  const control::Time epoch_;
  Publisher publisher_;
  control::PublishCheckpoint publishing_;  // the last one
  bool publishes_again_ = false;           // what a control before this one was publishing

  std::optional<control::Membership> membership_;
  control::Outcome first_;
  int64_t wanted_before_ = 1;  // by a state that had finished
  std::vector<control::Event> inbox_;
  std::deque<Asked> asked_;
  OnAnswer answering_;      // who asked for what is being handled
  control::Time heard_{0};  // all that had come by then is in the inbox, or was told
  Saving saving_ = Saving::none;
  std::vector<control::Command> held_;  // of a state that is not saved yet
  control::Time held_since_{0};
  control::Time save_again_{0};
  std::string save_error_;  // of the last save; empty: it was the first, or went well
  std::optional<control::Time> end_asked_;  // since when its end waits until the state is saved
  std::string refused_;                     // why the last request was; empty: it was followed
  bool ended_ = false;
  std::map<control::WorkerId, control::WorkerStatus> reports_;
  size_t members_ = 0;  // of the last generation
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace ductile::link
