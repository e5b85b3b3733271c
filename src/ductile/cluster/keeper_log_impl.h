#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>
#include <thread>

#include "ductile/base/descriptor.h"
#include "ductile/base/files.h"

namespace ductile::cluster {

// What a command says, on its way into its log, to which the standard output and error of this
// process lead from then on, too. The command itself never has the file: one that is removed is let
// go within a second, so that its room is free, and begun anew. A log has at most `most` bytes;
// then it becomes FILE.1, in the place of the FILE.1 before, and is begun anew. What a full disk
// does not take is left out, and how much that was is said once there is room: the command never
// waits for it.
class CommandLog {
 public:
  static constexpr int64_t kMost = int64_t{512} << 20;

  // Throws unavailable where this process may not have what it takes.
  explicit CommandLog(fs::path file, int64_t most = kMost);
  CommandLog(const CommandLog&) = delete;
  CommandLog& operator=(const CommandLog&) = delete;
  ~CommandLog();  // what was said by now is in the file

  int input() const { return input_.get(); }  // for the command; it is closed on exec
  void close_input() { input_.close(); }      // here, once the command has it

 private:
  void serve();
  void append(std::string_view text);
  void look();
  void begin_anew();
  void reopen();
  void put(std::string_view text);
  void tell_loss();

  const fs::path file_;
  const int64_t most_;
  Descriptor output_, input_, stop_;
  // Of the thread, once it runs.
  bool open_ = false;
  int64_t size_ = 0, lost_ = 0;  // bytes
  std::chrono::steady_clock::time_point looked_{}, tell_at_{};
  std::thread thread_;
};

}  // namespace ductile::cluster
