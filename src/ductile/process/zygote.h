#pragma once

#include <map>
#include <optional>
#include <string>

#include <sys/types.h>

#include "ductile/base/descriptor.h"
#include "ductile/process/spawn.h"

// Workers without the time that it takes to load their program: a process that has loaded all that
// workers need (libtorch; of Python jobs what they import), and forks one for each that is asked
// for. This is the side of those who ask; forked_worker.h is that of the process.
namespace ductile::process {

inline constexpr const char* kZygote = "--zygote";  // what a worker's program is told to become it

// Whether there is one for a program: ductile-worker, or that of Python's workers, unless
// $DUCTILE_ZYGOTE is "off".
bool has_zygote(const fs::path& program);

// The process that forks, a child of this one. It ends with this object, and by itself when this
// process or the thread that made it does; the workers do not. Nothing here waits for it but the
// destructor, which kills it first.
//
// A worker is forked as a child of this process, not of the zygote: its owner reaps it as if it had
// started it, and its command line is that of one that was started. Whatever happens to the zygote,
// there is either such a worker, which says so and waits until it is let go, or none ever: then the
// socket that Zygote::ask gave ends, and the owner starts the worker by itself.
//
// It is forked only where it has all that one which is started would have. So the zygote has to be
// of the program that is there now, and to have taken over from this process what a program would
// that is started now (outdated()); and the environment has to be the zygote's, apart from a few
// variables which nothing reads when a program is loaded. Else it is started.
class Zygote {
 public:
  // Started as a worker with this program, environment, log and mask would be; throws as spawn().
  explicit Zygote(const SpawnOptions& worker);
  ~Zygote();
  Zygote(const Zygote&) = delete;
  Zygote& operator=(const Zygote&) = delete;

  // Whether this worker would have all that one which is started has.
  bool suits(const SpawnOptions& worker) const;
  // Asks for a worker like this one, now or as soon as the zygote has loaded all. Empty: this one
  // cannot be forked, or the zygote cannot be asked; nothing comes.
  Descriptor ask(const SpawnOptions& worker);
  // Whether it has loaded all, and forks at once.
  bool ready();
  // Whether it is known to have ended.
  bool broken();
  // Whether workers that are started now would not be what it forks.
  bool outdated() const;
  pid_t pid() const { return pid_; }

 private:
  using Environment = std::map<std::string, std::string>;
  static Environment environment_of(const SpawnOptions& worker);
  static std::string file_of(const fs::path& program);
  static std::string blocked_by(const SpawnOptions& worker);
  void listen();

  const fs::path program_;
  const std::string file_, inherited_, blocked_;
  const Environment environment_;
  Descriptor link_;
  pid_t pid_ = 0;
  bool ready_ = false, broken_ = false;
};

struct ZygoteAnswer {
  bool none = false;            // and there will be none
  std::optional<pid_t> worker;  // waits to be let go; unset and not none: no answer yet
};
// What has come through the socket that ask() gave.
ZygoteAnswer answer_of_zygote(int asked);
// The worker begins. Closing the socket instead ends it.
void let_go(int asked);

}  // namespace ductile::process
