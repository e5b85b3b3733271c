#include "ductile/net/handshake.h"

#include <algorithm>
#include <utility>

#include "ductile/net/bytes_impl.h"

namespace ductile::net {
namespace {

constexpr std::string_view kMagic = "DUCTILE2";
constexpr size_t kRoleBytes = 16;
constexpr size_t kJobBytes = 64;
constexpr size_t kGenerationAt = 8 + kRoleBytes + kJobBytes;
constexpr size_t kHelloBytes = kGenerationAt + 8 + 4 + 4 + sizeof(Nonce);
constexpr size_t kVerdictBytes = 1 + 8 + sizeof(Mac);

void append_padded(std::vector<std::byte>& to, std::string_view text, size_t size,
                   const char* what) {
  if (text.size() >= size) {
    fail(ErrorCode::invalid_argument, "{} '{}' is too long for a handshake: at most {} bytes", what,
         text, size - 1);
  }
  append_bytes(to, bytes_of(text));
  to.resize(to.size() + size - text.size());
}

std::string read_padded(std::span<const std::byte> from) {
  const auto end = std::find(from.begin(), from.end(), std::byte{0});
  return std::string(text_of(from.first(static_cast<size_t>(end - from.begin()))));
}

std::vector<std::byte> make_hello(const Identity& self) {
  std::vector<std::byte> hello;
  hello.reserve(kHelloBytes);
  append_bytes(hello, bytes_of(kMagic));
  append_padded(hello, self.role, kRoleBytes, "role");
  append_padded(hello, self.job, kJobBytes, "job name");
  append_number(hello, self.generation);
  append_number(hello, self.peer);
  append_number(hello, self.lane);
  append_bytes(hello, random_nonce());
  return hello;
}

Identity read_hello(std::span<const std::byte> hello) {
  Identity id;
  id.role = read_padded(hello.subspan(8, kRoleBytes));
  id.job = read_padded(hello.subspan(8 + kRoleBytes, kJobBytes));
  id.generation = read_number<uint64_t>(hello, kGenerationAt);
  id.peer = read_number<int32_t>(hello, kGenerationAt + 8);
  id.lane = read_number<uint32_t>(hello, kGenerationAt + 12);
  return id;
}

}  // namespace

std::string Identity::to_string() const {
  std::string text = role;
  if (peer >= 0) text += fmt::format(" {}", peer);
  text += fmt::format(" of job '{}'", job);
  if (generation != 0) text += fmt::format(", generation {}", generation);
  return text;
}

Verdict same_job(const Identity& self, const Identity& peer) {
  if (peer.job != self.job) return Verdict::unexpected;
  if (self.generation == 0 || peer.generation == self.generation) return Verdict::admitted;
  return peer.generation < self.generation ? Verdict::fenced : Verdict::ahead;
}

Handshake Handshake::client(const Secret& secret, Identity self, Identity server) {
  Handshake h(secret, std::move(self));
  h.expected_ = std::move(server);
  h.client_hello_ = make_hello(h.self_);
  h.output_ = h.client_hello_;
  h.expect(Waits::server_hello, kHelloBytes + sizeof(Mac));
  return h;
}

Handshake Handshake::server(const Secret& secret, Identity self, Admit admit) {
  Handshake h(secret, std::move(self));
  h.admit_ = std::move(admit);
  h.expect(Waits::client_hello, kHelloBytes);
  return h;
}

void Handshake::feed(std::span<const std::byte> bytes) {
  DUCTILE_CHECK(state_ == State::running && bytes.size() <= wanted());
  append_bytes(received_, bytes);
  // Garbage is known from its first bytes; there is no reason to wait for the rest.
  if (waits_ == Waits::client_hello || waits_ == Waits::server_hello) {
    const size_t seen = std::min(received_.size(), kMagic.size());
    if (text_of(received_).substr(0, seen) != kMagic.substr(0, seen)) {
      return refuse(ErrorCode::unavailable, "it does not speak this protocol");
    }
  }
  if (received_.size() < wanted_) return;
  switch (waits_) {
    case Waits::client_hello:
      return on_client_hello();
    case Waits::server_hello:
      return on_server_hello();
    case Waits::client_proof:
      return on_client_proof();
    case Waits::verdict:
      return on_verdict();
  }
}

std::vector<std::byte> Handshake::take_output() { return std::exchange(output_, {}); }

void Handshake::on_client_hello() {
  client_hello_ = received_;
  server_hello_ = make_hello(self_);
  peer_ = read_hello(client_hello_);
  append_bytes(output_, server_hello_);
  append_bytes(output_, prove("server"));
  expect(Waits::client_proof, sizeof(Mac));
}

void Handshake::on_server_hello() {
  server_hello_.assign(received_.begin(), received_.begin() + kHelloBytes);
  peer_ = read_hello(server_hello_);
  const auto proof = std::span<const std::byte>(received_).subspan(kHelloBytes);
  if (!equal_in_constant_time(proof, prove("server"))) {
    return refuse(ErrorCode::unavailable,
                  "it does not know this job's secret; give both sides the same secret");
  }
  if (peer_.role != expected_.role || peer_.job != expected_.job || peer_.peer != expected_.peer) {
    return refuse(ErrorCode::conflict,
                  fmt::format("it is {}, wanted was {}; is the address out of date?",
                              peer_.to_string(), expected_.to_string()));
  }
  append_bytes(output_, prove("client"));
  expect(Waits::verdict, kVerdictBytes);
}

void Handshake::on_client_proof() {
  if (!equal_in_constant_time(received_, prove("client"))) {
    return refuse(ErrorCode::unavailable, "it does not know this job's secret");
  }
  verdict_ = admit_(peer_);
  std::vector<std::byte> answer;
  append_number(answer, static_cast<uint8_t>(verdict_));
  append_number(answer, self_.generation);
  append_bytes(output_, answer);
  append_bytes(output_, prove("verdict", answer));
  if (verdict_ == Verdict::admitted) {
    state_ = State::done;
    return;
  }
  const char* why = verdict_ == Verdict::fenced  ? "its generation is over"
                    : verdict_ == Verdict::ahead ? "its generation is newer than this one"
                    : verdict_ == Verdict::busy  ? "there is no room"
                                                 : "it is not expected here";
  refuse(ErrorCode::conflict,
         fmt::format("{}: {}; this is {}", peer_.to_string(), why, self_.to_string()));
}

void Handshake::on_verdict() {
  const std::span<const std::byte> all(received_);
  if (!equal_in_constant_time(all.subspan(9), prove("verdict", all.first(9)))) {
    return refuse(ErrorCode::unavailable, "its answer was altered on the way");
  }
  verdict_ = static_cast<Verdict>(read_number<uint8_t>(all, 0));
  const auto generation = read_number<uint64_t>(all, 1);
  switch (verdict_) {
    case Verdict::admitted:
      if (generation != 0 && generation != self_.generation) {
        return refuse(ErrorCode::conflict, fmt::format("it is of generation {}, this process of {}",
                                                       generation, self_.generation));
      }
      state_ = State::done;
      return;
    case Verdict::fenced:
      return refuse(ErrorCode::conflict,
                    fmt::format("fenced out: generation {} is over, the job is in generation {}; "
                                "this process was replaced and must end",
                                self_.generation, generation));
    case Verdict::ahead:
      return refuse(ErrorCode::conflict,
                    fmt::format("it is still in generation {}, this process in {}", generation,
                                self_.generation));
    case Verdict::busy:
      return refuse(ErrorCode::unavailable, "it has no room for another connection now");
    case Verdict::unexpected:
      break;
  }
  refuse(ErrorCode::conflict, fmt::format("it does not expect {}", self_.to_string()));
}

void Handshake::expect(Waits waits, size_t size) {
  waits_ = waits;
  wanted_ = size;
  received_.clear();
}

void Handshake::refuse(ErrorCode code, std::string reason) {
  state_ = State::refused;
  code_ = code;
  reason_ = std::move(reason);
}

Mac Handshake::prove(std::string_view label, std::span<const std::byte> extra) const {
  std::array<std::byte, 16> padded{};
  std::memcpy(padded.data(), label.data(), std::min(label.size(), padded.size()));
  return secret_.mac({padded, client_hello_, server_hello_, extra});
}

Mac Handshake::key() const {
  DUCTILE_CHECK(state_ == State::done);
  return prove("connection key");
}

}  // namespace ductile::net
