#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include <sys/types.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/process/line_reader.h"

namespace ductile::bench {

// The ranks of one experiment: processes that read lines of JSON from stdin and answer with lines
// of JSON on stdout. Each runs here or, through a launcher command, on another host. Whatever
// happens, none is left when the object ends: one that does not end by itself is killed. One
// thread.
class RankProcesses {
 public:
  using Json = nlohmann::ordered_json;

  RankProcesses() = default;
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;
  ~RankProcesses();

  // Starts the next rank. `launcher` are the words of a command that runs a program elsewhere;
  // empty: here. `where` follows the rank's number in errors: " on node3".
  void start(const fs::path& program, const std::vector<std::string>& launcher, std::string where);
  size_t size() const { return ranks_.size(); }

  // Sends a line, which must be shorter than a pipe's buffer. That a rank is gone shows in
  // listen().
  void tell(size_t rank, const Json& line);

  // Calls on_line(rank, line) for what the ranks say, until all have ended or it returns false.
  // Throws what a rank reports as {"error": text, "code": name}, or how it died; of several errors
  // the cause, which is never that others lost a rank.
  void listen(const std::function<bool(size_t rank, const Json& line)>& on_line);

 private:
  struct Rank {
    pid_t pid = -1;
    Descriptor in;   // to its stdin
    Descriptor out;  // from its stdout
    process::LineReader lines;
    std::string where;
    bool explained = false;  // it said why it fails
  };

  void reap(size_t rank);
  void note(size_t rank, ErrorCode code, const std::string& text);

  std::vector<Rank> ranks_;
  std::optional<Error> first_error_;
  std::chrono::steady_clock::time_point first_error_at_;
  bool settled_ = false;  // the error is a cause
};

}  // namespace ductile::bench
