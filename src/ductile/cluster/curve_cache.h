#pragma once

#include <chrono>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "ductile/base/files.h"

namespace ductile::cluster {

// The curves of the runs that were looked at last, as JSON. The files of a long run take a while to
// read, and a page looks every few seconds, so they are read again only after ten times as long as
// reading them took. Who looks at a run waits for nobody who reads another one. Thread-safe.
class CurveCache {
 public:
  struct Curves {
    std::string version;  // of the files that they were made from
    std::string text;     // JSON, as run::chart_data gives it
  };
  // Throws as run::RunFolder::open and run::read_history do.
  Curves of(const fs::path& run);

 private:
  static constexpr size_t kMost = 16;
  struct Entry {
    explicit Entry(fs::path of) : run(std::move(of)) {}
    const fs::path run;
    std::mutex mutex;  // of what follows, also while it is read
    Curves curves;
    std::chrono::steady_clock::time_point again{};
  };
  std::shared_ptr<Entry> entry_of(const fs::path& run);

  std::mutex mutex_;
  std::list<std::shared_ptr<Entry>> entries_;  // the one that was asked for last comes first
};

}  // namespace ductile::cluster
