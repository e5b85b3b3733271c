#include "ductile/server/client.h"

#include <cerrno>
#include <string>

#include <nlohmann/json.hpp>
#include <poll.h>
#include <sys/socket.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/server/unix_socket_impl.h"

namespace ductile::server {

nlohmann::json ask(const fs::path& run, const nlohmann::json& request,
                   std::chrono::milliseconds deadline) {
  const auto end = std::chrono::steady_clock::now() + deadline;
  const Descriptor fd = connect_unix(run, deadline);
  if (fd.get() < 0) {
    fail(ErrorCode::not_found,
         "{0}: no controller runs for this run; start one with `ductile train --resume {0}`",
         run.string());
  }
  if (!same_user(fd.get()))
    fail(ErrorCode::unavailable, "{}: its controller belongs to another user", run.string());
  const std::string text = dump_json(request) + "\n";
  if (send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(text.size()))
    fail_errno(run.string() + ": its controller", errno);
  std::string answer;
  while (answer.empty() || answer.back() != '\n') {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    pollfd item{fd.get(), POLLIN, 0};
    if (left.count() <= 0 || (::poll(&item, 1, static_cast<int>(left.count())) == 0)) {
      fail(ErrorCode::deadline,
           "{}: its controller gave no answer in {} ms; is it stopped (kill -CONT wakes it up)?",
           run.string(), deadline.count());
    }
    char block[4096];
    const ssize_t n = recv(fd.get(), block, sizeof block, MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n < 0) fail_errno(run.string() + ": its controller", errno);
    if (n == 0)
      fail(ErrorCode::unavailable, "{}: its controller ended before it answered", run.string());
    answer.append(block, static_cast<size_t>(n));
  }
  nlohmann::json value = parse_json(answer);
  if (!value.is_object())
    fail(ErrorCode::data_loss, "{}: its controller answered with something else than JSON",
         run.string());
  if (const auto error = value.find("error"); error != value.end() && error->is_string())
    throw Error(error_code_from(value.value("code", "")), error->get<std::string>());
  return value;
}

bool has_controller(const fs::path& run) { return is_listening(run); }

}  // namespace ductile::server
