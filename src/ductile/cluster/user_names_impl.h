#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <sys/types.h>

namespace ductile::cluster {

// The names of users. A network may have to be asked for one, and may never answer: each question
// has a thread of its own, which nobody waits for longer than he wants to. Thread-safe.
class UserNames {
 public:
  using NameOf = std::function<std::string(uid_t)>;

  // `name_of` may be called after the end of this object, where it had not answered until then.
  explicit UserNames(NameOf name_of);
  ~UserNames();
  UserNames(const UserNames&) = delete;
  UserNames& operator=(const UserNames&) = delete;

  // Without waiting: the name that an earlier question was answered with.
  std::optional<std::string> known(uid_t user) const;
  // Throws unavailable where there is no answer by then, or none can be had now.
  std::string find(uid_t user, std::chrono::steady_clock::time_point until);
  // From now on nobody waits.
  void end();

 private:
  struct State;
  const std::shared_ptr<State> state_;  // of the threads that ask, too
};

}  // namespace ductile::cluster
