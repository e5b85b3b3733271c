#pragma once

#include <chrono>
#include <list>
#include <memory>
#include <optional>

#include "ductile/base/descriptor.h"
#include "ductile/net/loop.h"
#include "ductile/process/spawn.h"
#include "ductile/process/zygote.h"

namespace ductile::server {

// The zygotes of one program on one machine, one after the other (process/zygote.h): one that ends,
// answers nobody, or is out of date is replaced. Whoever asks them for workers starts those that
// they do not fork, and starts all of them while no zygote can be had. All methods belong to the
// loop's thread, and none waits for a zygote but for the end of one that it killed.
class Zygotes {
 public:
  using Clock = std::chrono::steady_clock;

  struct Patience {
    bool for_load = false;  // workers wait until it is loaded; else they are started meanwhile
    std::chrono::milliseconds load{600'000};
    std::chrono::milliseconds fork{5'000};    // once it is loaded
    std::chrono::milliseconds again{60'000};  // after one that was of no use; each time twice that
  };
  // A worker that was asked for, and is not there yet.
  struct Asked {
    Descriptor socket;  // becomes readable when there is an answer
    int zygote = 0;     // which one
  };

  explicit Zygotes(net::Loop& loop) : Zygotes(loop, Patience()) {}
  Zygotes(net::Loop& loop, Patience patience) : loop_(loop), patience_(patience) {}
  ~Zygotes();
  Zygotes(const Zygotes&) = delete;
  Zygotes& operator=(const Zygotes&) = delete;

  // Begins to load the program, for workers like this one.
  void warm(const process::SpawnOptions& worker);
  // The first one, which this process has asked before: it need not be loaded anew. Nobody else has
  // it any more.
  void take_over(std::shared_ptr<process::Zygote> loaded);
  // Nothing: the worker is to be started.
  std::optional<Asked> ask(const process::SpawnOptions& worker);
  // To be called when the socket is readable, and now and then. `none`: the worker is to be started
  // after all, and the wish withdrawn.
  process::ZygoteAnswer answer(const Asked& asked);
  // Whatever comes of it never begins, and is reaped here.
  void withdraw(Asked asked);
  // A forked worker crashed: those that follow are started for a while, in case that this was why.
  void distrust() { give_up(true); }

 private:
  struct Withdrawn {
    Asked asked;
    net::Loop::Watch watch;  // ends before the socket is closed
  };

  bool begin(const process::SpawnOptions& worker);
  void judge();
  void give_up(bool of_no_use);
  bool is_over(const Asked& asked);
  void reap();

  net::Loop& loop_;
  const Patience patience_;
  std::shared_ptr<process::Zygote> zygote_;
  int number_ = 0;                       // of the last one
  bool ready_ = false, forked_ = false;  // it has loaded the program, and forked a worker
  bool taken_over_ = false;              // its workers may be of another kind
  Clock::time_point begun_{};
  std::optional<Clock::time_point> waiting_since_;  // for an answer of it, once it is loaded
  std::optional<Clock::time_point> not_before_;
  int of_no_use_ = 0;  // one after the other
  std::list<Withdrawn> withdrawn_;
};

}  // namespace ductile::server
