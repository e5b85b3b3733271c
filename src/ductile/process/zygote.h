#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "ductile/base/descriptor.h"
#include "ductile/process/spawn.h"

// Workers without the time that their imports take: a process that has imported what all workers of
// a Python job import, and forks one for each that is asked for.
namespace ductile::process {

// Whether there is one for a program: that of Python's workers, unless $DUCTILE_ZYGOTE is "off".
bool has_zygote(const fs::path& program);

// The process that forks, a child of this one. It ends with this object, and by itself when this
// process or the thread that made it does; the workers do not. Nothing here waits for it but the
// destructor, which kills it first.
//
// A worker is forked as a child of this process, not of the zygote: its owner reaps it as if it had
// started it, and its command line is that of one that was started. Whatever happens to the zygote,
// there is either such a worker, which says so and waits until it is let go, or none ever: then the
// socket that Zygote::ask gave ends, and the owner starts the worker by itself.
class Zygote {
 public:
  // Started as a worker with this program, environment, log and mask would be; throws as spawn().
  explicit Zygote(const SpawnOptions& worker);
  ~Zygote();
  Zygote(const Zygote&) = delete;
  Zygote& operator=(const Zygote&) = delete;

  // Asks for a worker like this one, now or as soon as the zygote has imported all. Empty: this one
  // needs another environment than the zygote has, or the zygote cannot be asked; nothing comes.
  Descriptor ask(const SpawnOptions& worker);
  // Whether it is known to have ended.
  bool broken() const;

 private:
  std::vector<std::pair<std::string, std::string>> environment_;
  Descriptor link_;
  pid_t pid_ = 0;
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
