#include "ductile/cluster/client.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <iterator>
#include <system_error>
#include <thread>

#include <httplib.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/cluster/store.h"
#include "ductile/cluster/tls_impl.h"
#include "ductile/net/secret.h"

namespace ductile::cluster {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::chrono::milliseconds kConnect = std::chrono::seconds(5);
constexpr int kTries = 3;
constexpr int kWaits = 30;  // for a service that asks for patience

// OpenSSL writes to connections whose other end is gone, for which the kernel would end this
// program.
class NoBrokenPipe {
 public:
  NoBrokenPipe() {
    ::sigemptyset(&pipe_);
    ::sigaddset(&pipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  NoBrokenPipe(const NoBrokenPipe&) = delete;
  NoBrokenPipe& operator=(const NoBrokenPipe&) = delete;
  ~NoBrokenPipe() {
    const timespec now{};
    if (::sigismember(&before_, SIGPIPE) == 0) ::sigtimedwait(&pipe_, nullptr, &now);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t pipe_{}, before_{};
};

// Whether the server's key is the one that was pinned; what it showed is kept.
struct Pin {
  std::string wanted, shown;
};

int check_pin(X509_STORE_CTX* store, void* data) {
  auto& pin = *static_cast<Pin*>(data);
  try {
    pin.shown = pin_of(X509_STORE_CTX_get0_cert(store));
  } catch (const std::exception&) {
    return 0;
  }
  return pin.shown == pin.wanted ? 1 : 0;
}

// Of a busy server, which has not looked at the request; other troubles of a service have a text.
bool asks_for_patience(const httplib::Result& result) {
  return result && (result->status == 429 || (result->status == 503 && result->body.empty() &&
                                              result->has_header("Retry-After")));
}

// Then nothing was sent.
bool never_connected(httplib::Error error) {
  return error == httplib::Error::Connection || error == httplib::Error::ConnectionTimeout ||
         error == httplib::Error::SSLConnection;
}

// Verbs of `ductile` that ask a service, and take the option that says which.
constexpr std::string_view kAsking[] = {
    "cancel", "drain",  "events", "jobs",   "logs",   "nodes", "page",    "preempt",
    "reload", "resize", "resume", "status", "submit", "token", "undrain", "why"};

// What shows whether a request that was posted has been carried out, and what else is to be done.
std::string_view look_after(std::string_view path) {
  if (path == "/v1/tokens")
    return "`ductile token list`; a token whose access file did not come is to be revoked, and "
           "another one made";
  if (path.starts_with("/v1/tokens/")) return "`ductile token list`";
  if (path.starts_with("/v1/nodes/")) return "`ductile nodes`";
  return "`ductile jobs --all`";
}

// As long as it asks for.
void have_patience(const httplib::Result& result) {
  const std::string text = result->get_header_value("Retry-After");
  int64_t seconds = 1;
  std::from_chars(text.data(), text.data() + text.size(), seconds);
  std::this_thread::sleep_for(std::chrono::seconds(std::clamp<int64_t>(seconds, 1, 10)));
}

}  // namespace

class Client::Line {
 public:
  explicit Line(const Client& client)
      : client_(client),
        name_(client.name()),
        pin_{client.access_ ? client.access_->fingerprint : "", ""},
        http_(client.access_ ? client.access_->address : client.socket_.string()) {
    http_.set_connection_timeout(std::min(kConnect, client.patience_));
    http_.set_read_timeout(client.patience_);
    if (!client.access_) {
      http_.set_address_family(AF_UNIX);
      return;
    }
    http_.set_bearer_token_auth(client.access_->token);
    if (!client.access_->address.starts_with("https://")) return;
    // The library looks at the chain and the host; a pinned key needs neither.
    http_.enable_server_certificate_verification(pin_.wanted.empty());
    SSL_CTX* const context = http_.ssl_context();
    SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
    if (pin_.wanted.empty()) return;
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
    SSL_CTX_set_cert_verify_callback(context, check_pin, &pin_);
  }

  httplib::Client& http() { return http_; }

  // Whether somebody answered; false: nobody listens. Throws where that cannot be told.
  bool answered(const httplib::Result& result) const {
    check(result);
    if (!result && result.error() != httplib::Error::Connection)
      throw Unreachable(
          ErrorCode::deadline,
          fmt::format("{} gave no answer in time ({}): it is busy, or just ending, or something in "
                      "between lets nothing through; try again",
                      name_, httplib::to_string(result.error())));
    return static_cast<bool>(result);
  }

  Json answer_of(const httplib::Result& result) const {
    if (!answered(result)) throw Unreachable(ErrorCode::unavailable, client_.where());
    if (asks_for_patience(result) && result->body.empty())
      throw Unreachable(ErrorCode::unavailable,
                        fmt::format("{} has as many connections as it may have; try again", name_));
    Json answer = parse_json<Json>(result->body);
    if (result->status >= 300) {
      const bool known = answer.is_object() && answer.contains("error");
      const std::string code = known ? answer.value("code", "internal") : "internal";
      if (known && code == "gone") {
        Gone gone(answer.value("since", 0.0),
                  client_.with_option(answer.at("error").get<std::string>()));
        gone.begin = answer.value("begin", Revision{0});
        throw gone;
      }
      // Refused to this user: no other attempt helps, as with what a state forbids.
      if (known)
        fail(code == "refused" ? ErrorCode::conflict : error_code_from(code), "{}",
             client_.with_option(answer.at("error").get<std::string>()));
      const bool busy = result->status == 503 || result->status == 429;
      fail(busy ? ErrorCode::unavailable : ErrorCode::internal, "{}: HTTP status {}", name_,
           result->status);
    }
    return answer;
  }

  // Throws where it was no service of ours that answered.
  void check(const httplib::Result& result) const {
    if (!pin_.shown.empty() && pin_.shown != pin_.wanted)
      fail(ErrorCode::conflict,
           "{}: the server there shows the key {}, and the access file has {}: it is another "
           "server, or one whose key was made anew; ask its admin for a new access file, and send "
           "nothing until then",
           name_, pin_.shown, pin_.wanted);
    if (!result && result.error() == httplib::Error::SSLServerVerification)
      fail(ErrorCode::conflict,
           "{}: nobody whom this machine trusts has signed the server's certificate for this host; "
           "an access file with its fingerprint needs no signature: ductile token add",
           name_);
  }

 private:
  const NoBrokenPipe no_broken_pipe_;
  const Client& client_;
  const std::string name_;
  Pin pin_;
  httplib::Client http_;
};

std::string Client::name() const {
  return access_ ? "the service at " + access_->address
                 : "the service in " + socket_.parent_path().string();
}

std::string Client::where() const {
  if (access_)
    return fmt::format(
        "no service answers at {}; it may have been stopped, or a firewall may be in between",
        access_->address);
  // A service leaves its store there, and that of a cluster the folder of its agents, too, unless
  // --shared puts that elsewhere.
  const fs::path folder = socket_.parent_path();
  std::error_code unknown;
  const std::string none = fmt::format("no service answers in {}; ", folder.string()),
                    up = fmt::format("`ductile up{}` starts one", option_),
                    server = fmt::format("`ductile server CLUSTER_FILE{}`", option_);
  if (fs::exists(folder / "server", unknown))
    return none + server + " starts that of its cluster again";
  if (fs::exists(folder / "store.db", unknown))
    return fmt::format("{}{}, or {} where it is that of a cluster", none, up, server);
  return none + up;
}

std::string Client::with_option(std::string_view text) const {
  constexpr std::string_view kBegin = "`ductile ";
  std::string out;
  while (!option_.empty()) {
    const size_t begin = text.find(kBegin);
    const size_t end = begin == text.npos ? text.npos : text.find('`', begin + kBegin.size());
    if (end == text.npos) break;
    const std::string_view words = text.substr(begin + kBegin.size(), end - begin - kBegin.size());
    const std::string_view verb = words.substr(0, words.find(' '));
    // What follows -- is another program's.
    const size_t own = std::min(words.find(" -- "), words.size());
    const bool asks = std::ranges::find(kAsking, verb) != std::end(kAsking);
    out.append(text.substr(0, begin + kBegin.size())).append(words.substr(0, own));
    if (asks) out.append(option_);
    out.append(words.substr(own)).append("`");
    text.remove_prefix(end + 1);
  }
  out.append(text);
  return out;
}

bool Client::reachable() const {
  std::error_code error;
  if (!access_ && !fs::is_socket(socket_, error)) {
    if (error == std::errc::permission_denied)
      fail(ErrorCode::conflict,
           "{}: this user may not look there, so whether a service answers is not known: let whose "
           "folder it is open it (chmod o+x, also of the folders above it), or give you an access "
           "file (ductile token add)",
           socket_.parent_path().string());
    return false;
  }
  Line line(*this);
  return line.answered(line.http().Get("/v1/jobs?limit=1"));
}

Json Client::get(const std::string& path) const {
  for (int i = 1;; ++i) {
    Line line(*this);
    const auto result = line.http().Get(path);
    if (!asks_for_patience(result) || i > kWaits) return line.answer_of(result);
    have_patience(result);
  }
}

Json Client::post(const std::string& path, const nlohmann::json& body) const {
  const httplib::Headers headers = {{"Idempotency-Key", net::to_hex(net::random_nonce())}};
  const std::string text = dump_json(body);
  for (int waits = 0, losses = 0;;) {
    Line line(*this);
    const auto result = line.http().Post(path, headers, text, "application/json");
    if (asks_for_patience(result) && ++waits <= kWaits) {
      have_patience(result);
      continue;
    }
    line.check(result);
    // The connection stood, so the request may have been carried out. With the same key it is
    // carried out once; another call has another key.
    const bool lost = !result && !never_connected(result.error());
    if (lost && ++losses < kTries) continue;
    const bool unknown = lost || (losses > 0 && (!result || asks_for_patience(result)));
    if (unknown && path.starts_with("/v1/page/"))  // a link that nobody has lets nobody in
      throw Unreachable(ErrorCode::deadline,
                        fmt::format("{} gave no answer ({}); ask again: {}", name(),
                                    result ? "busy" : httplib::to_string(result.error()),
                                    with_option("`ductile page`")));
    if (unknown)
      throw Unreachable(
          ErrorCode::deadline,
          fmt::format(
              "{} gave no answer ({}), and what it was asked may still be carried out: look "
              "before you ask again ({}), else it may be done twice",
              name(), result ? "busy" : httplib::to_string(result.error()),
              with_option(look_after(path))));
    return line.answer_of(result);
  }
}

std::string percent_encoded(std::string_view text) {
  constexpr std::string_view kPlain = "-_.~";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool letter = (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
                        (byte >= '0' && byte <= '9');
    if (letter || kPlain.find(c) != std::string_view::npos) {
      out += c;
    } else {
      out += fmt::format("%{:02X}", byte);
    }
  }
  return out;
}

fs::path usual_folder(const char* const* environment) {
  std::string home, state;
  for (const char* const* at = environment; *at != nullptr; ++at) {
    const std::string_view text = *at;
    if (text.starts_with("HOME=")) home = text.substr(5);
    if (text.starts_with("XDG_STATE_HOME=")) state = text.substr(15);
  }
  if (!state.empty()) return fs::path(state) / "ductile";
  if (home.empty())
    fail(ErrorCode::invalid_argument,
         "neither HOME nor XDG_STATE_HOME says where a service keeps its state; --folder does");
  return fs::path(home) / ".local" / "state" / "ductile";
}

}  // namespace ductile::cluster
