#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "ductile/base/files.h"
#include "ductile/run/folder.h"

namespace ductile::cluster {

// The curves of the runs that were looked at last, as JSON. The files of a long run take a while to
// read, and a page looks every few seconds, so they are read again only after ten times as long as
// reading them took, also where that failed, and by one who asks at a time: others get what is
// known meanwhile. Who looks at a run waits for nobody who reads another one. Thread-safe.
class CurveCache {
 public:
  struct Curves {
    std::string version;  // of the files that they were made from
    std::string text;     // JSON, as run::chart_data gives it
  };
  using Time = std::chrono::steady_clock::time_point;
  using Read = std::function<std::string(const run::RunFolder&)>;
  using Now = std::function<Time()>;

  // `read` gives the text of a run's curves.
  explicit CurveCache(Read read = {}, Now now = std::chrono::steady_clock::now);
  // Throws as run::RunFolder::open and run::read_history do.
  Curves of(const fs::path& run);

 private:
  static constexpr size_t kMost = 16;
  struct Entry {
    explicit Entry(fs::path of) : run(std::move(of)) {}
    const fs::path run;
    std::mutex mutex;  // of what follows, which nobody holds while the run is read
    std::condition_variable known;
    bool reading = false;
    std::optional<Curves> curves;
    std::exception_ptr failure;  // of the last read
    Time again{};
  };
  void read(Entry& entry, const run::RunFolder& folder, std::string version) const;
  std::shared_ptr<Entry> entry_of(const fs::path& run);

  const Read read_;
  const Now now_;
  std::mutex mutex_;
  std::list<std::shared_ptr<Entry>> entries_;  // the one that was asked for last comes first
};

}  // namespace ductile::cluster
