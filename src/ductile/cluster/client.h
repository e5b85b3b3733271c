#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json_fwd.hpp>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/cluster/access_file.h"

namespace ductile::cluster {

// Nobody answers, or nobody in time: another attempt may find the service. Its code is unavailable
// or deadline.
class Unreachable : public Error {
 public:
  using Error::Error;
};

// Requests to a service: over the unix socket of one on this machine, or with a token to any.
// Errors of the service come as the Error that they were there; who is refused gets conflict, since
// no other attempt helps.
class Client {
 public:
  static constexpr std::chrono::milliseconds kPatience = std::chrono::seconds(60);

  // `folder`: of a service on this machine. `patience`: for an answer. `option`: see option().
  explicit Client(const fs::path& folder, std::chrono::milliseconds patience = kPatience,
                  std::string option = "")
      : socket_(folder / "api.sock"), patience_(patience), option_(std::move(option)) {}
  // With an access file.
  explicit Client(Access access, std::string option = "")
      : access_(std::move(access)), patience_(kPatience), option_(std::move(option)) {}

  // Whether a service is there; false: nobody listens. Throws Unreachable (deadline) where somebody
  // may and gives no answer, so that it is to be asked again, and conflict if it is another one
  // than the access file means, or if this user may not see whether one is there.
  bool reachable() const;
  // For messages: what it is, and what to do if it does not answer.
  std::string name() const;   // "the service in FOLDER"
  std::string where() const;  // "no service answers in FOLDER; ..."
  // What the user has to add to a command so that it asks this service, with a space before it, as
  // " --folder DIR"; empty: it is found without.
  const std::string& option() const { return option_; }
  // A text that names commands, as "`ductile why 3` says more", with this in those that ask a
  // service. The errors that this class throws have it.
  std::string with_option(std::string_view text) const;
  // On this machine, whose files are the service's.
  bool is_local() const { return !access_; }

  // Throw Gone (store.h) for what was removed, and Unreachable: unavailable if nobody listens, and
  // deadline if no answer comes. `path` has its query, if any, percent-encoded.
  nlohmann::ordered_json get(const std::string& path) const;
  // Carried out once, though it is sent again where the answer was lost. Deadline means that it may
  // still be carried out, which the error says, unless no connection was made in time.
  nlohmann::ordered_json post(const std::string& path, const nlohmann::json& body) const;

 private:
  class Line;  // a connection

  const fs::path socket_;
  const std::optional<Access> access_;
  const std::chrono::milliseconds patience_;
  const std::string option_;
};

// A text as part of a path or a query.
std::string percent_encoded(std::string_view text);

// Where a service keeps what it keeps if nobody says otherwise: $XDG_STATE_HOME/ductile, or
// ~/.local/state/ductile.
fs::path usual_folder(const char* const* environment);

}  // namespace ductile::cluster
