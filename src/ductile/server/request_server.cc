#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>

#include <sys/socket.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/server/request_server_impl.h"
#include "ductile/server/unix_socket_impl.h"

namespace ductile::server {
namespace {

using nlohmann::json;

constexpr size_t kMaxClients = 64;
constexpr std::chrono::milliseconds kRest{100};
constexpr std::chrono::milliseconds kLookForSocket{500};
constexpr std::chrono::seconds kReads{10};  // a client, some of its answer

}  // namespace

json RequestServer::error_fields(const Error& error) {
  return {{"error", error.what()}, {"code", to_string(error.code())}};
}

RequestServer::RequestServer(net::Loop& loop, link::Disk& disk, const fs::path& run,
                             Descriptor listener, Handler handler)
    : loop_(loop),
      disk_(disk),
      run_(run),
      handler_(std::move(handler)),
      listener_(std::move(listener)) {
  try {
    watch_ = loop_.watch(listener_.get(), net::Interest::read, [this](net::Ready) { take_new(); });
  } catch (const Error&) {
    remove_socket();
    throw;
  }
  look_ = loop_.every(kLookForSocket, [this] { look(); });
}

RequestServer::~RequestServer() {
  *alive_ = false;
  remove_socket();
}

void RequestServer::remove_socket() {
  std::error_code ignored;
  fs::remove(run_ / kRequestSocket, ignored);
}

// Without its socket a controller can be neither asked nor replaced: its lock keeps others away.
void RequestServer::look() {
  std::erase_if(clients_, [now = loop_.now()](const auto& entry) {
    return !entry.second.output.empty() && now > entry.second.until;
  });
  if (looking_ || resume_.armed()) return;
  looking_ = true;
  const auto made = std::make_shared<Descriptor>();
  disk_.run(
      [run = run_, made] {
        std::error_code error;
        if (!fs::exists(fs::symlink_status(run / kRequestSocket, error))) *made = listen_unix(run);
      },
      [this, alive = alive_, made](const std::exception_ptr&) {  // a full disk ...: later
        if (!*alive) return;
        looking_ = false;
        if (*made) replace_listener(std::move(*made));
      });
}

void RequestServer::replace_listener(Descriptor listener) {
  try {
    net::Loop::Watch watch =
        loop_.watch(listener.get(), net::Interest::read, [this](net::Ready) { take_new(); });
    watch_ = std::move(watch);
    listener_ = std::move(listener);
  } catch (const Error&) {  // no memory: nobody would listen there, so it is made anew later
    remove_socket();
  }
}

void RequestServer::take_new() {
  while (true) {
    Descriptor fd(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.get() < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN) return;
      if (clients_.empty()) return rest();
      drop_idle();
      continue;
    }
    if (!same_user(fd.get())) continue;
    if (clients_.size() >= kMaxClients) drop_idle();
    take(std::move(fd));
  }
}

void RequestServer::take(Descriptor fd) {
  const uint64_t id = ++last_;
  try {
    net::Loop::Watch watch =
        loop_.watch(fd.get(), net::Interest::read, [this, id](net::Ready) { on_ready(id); });
    clients_[id] = {std::move(fd), std::move(watch), "", id, false, false};
  } catch (const Error&) {  // no memory: this one alone is hung up on
    return;
  }
  on_ready(id);  // it may have to make room for the next one, and has said something already
}

void RequestServer::drop_idle() {
  clients_.erase(std::min_element(
      clients_.begin(), clients_.end(),
      [](const auto& a, const auto& b) { return a.second.heard < b.second.heard; }));
}

// A listener that cannot be served stays readable: looking at it again and again helps nobody.
void RequestServer::rest() {
  watch_.set(net::Interest::none);
  resume_ = loop_.after(kRest, [this] {
    try {
      watch_.set(net::Interest::read);
    } catch (const Error&) {  // no memory: later
      return rest();
    }
    take_new();
  });
}

void RequestServer::on_ready(uint64_t id) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) return;
  const bool stays = found->second.output.empty() ? read_from(id) : go_on(id);
  if (!stays) clients_.erase(id);
}

// Those who wait for an answer are not heard meanwhile.
bool RequestServer::read_from(uint64_t id) {
  char block[4096];
  while (true) {
    const auto found = clients_.find(id);
    if (found == clients_.end() || found->second.waits || found->second.at_work) return true;
    Client& client = found->second;
    const ssize_t n = recv(client.fd.get(), block, sizeof block, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN;
    if (n == 0) return false;
    client.heard = ++last_;
    client.input.append(block, static_cast<size_t>(n));
    if (!serve_lines(id)) return false;
  }
}

bool RequestServer::serve_lines(uint64_t id) {
  while (true) {
    const auto found = clients_.find(id);
    if (found == clients_.end()) return true;
    Client& client = found->second;
    if (client.waits) {
      client.watch.set(client.output.empty() ? net::Interest::none : net::Interest::write);
      return true;
    }
    const size_t end = client.input.find('\n');
    if (end == std::string::npos) return client.input.size() <= kMaxRequest;
    const std::string line = client.input.substr(0, end);
    client.input.erase(0, end + 1);
    client.waits = client.at_work = true;
    try {
      const json request = parse_json(line);
      if (!request.is_object())
        fail(ErrorCode::invalid_argument, "a request is one JSON object a line");
      handler_(request, [this, alive = alive_, id](json fields) {
        if (*alive) answer(id, std::move(fields));
      });
    } catch (const Error& e) {
      answer(id, error_fields(e));
    }
    if (const auto still = clients_.find(id); still != clients_.end())
      still->second.at_work = false;
  }
}

void RequestServer::answer(uint64_t id, json fields) {
  const auto found = clients_.find(id);
  if (found == clients_.end() || !found->second.waits) return;
  Client& client = found->second;
  if (!fields.contains("error")) fields["ok"] = true;
  client.output = dump_json(fields) + "\n";
  if (!go_on(id)) clients_.erase(id);
}

// Sends what the socket takes; false: nobody reads any more.
bool RequestServer::send_rest(Client& client) {
  size_t sent = 0;
  while (sent < client.output.size()) {
    const ssize_t n = send(client.fd.get(), client.output.data() + sent,
                           client.output.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno != EAGAIN) return false;
    if (n < 0) break;
    sent += static_cast<size_t>(n);
    client.until = loop_.now() + kReads;
  }
  client.output.erase(0, sent);
  return true;
}

// With its answer, and then, if the answer came later, with what it has said meanwhile.
bool RequestServer::go_on(uint64_t id) {
  Client& client = clients_.at(id);
  if (!send_rest(client)) return false;
  const bool is_over = client.output.empty();
  client.waits = !is_over;
  if (client.at_work) return true;
  try {
    client.watch.set(is_over ? net::Interest::read : net::Interest::write);
    return !is_over || serve_lines(id);
  } catch (const Error&) {  // no memory to hear it again
    return false;
  }
}

}  // namespace ductile::server
