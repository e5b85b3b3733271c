#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/net/secret.h"

namespace ductile::net {

// The identity of a peer. The proofs cover all of it, so a proof is valid only for one connection
// of one pair of peers, in one role, job and generation.
struct Identity {
  std::string role;         // "store", "transport", "detector" ...; at most 15 bytes
  std::string job;          // the job's name; at most 63 bytes
  uint64_t generation = 0;  // 0: outside of the generations (the job's store)
  int32_t peer = -1;        // a rank, or -1
  uint32_t lane = 0;        // which of several connections between the two

  bool operator==(const Identity&) const = default;
  std::string to_string() const;  // "transport 3 of job a, generation 2"
};

// The server's answer to a peer that has proved that it knows the secret.
enum class Verdict : uint8_t {
  admitted = 0,
  fenced = 1,      // it belongs to an older generation: it was replaced and must end
  ahead = 2,       // it belongs to a newer generation: the server is the one that was replaced
  unexpected = 3,  // another job, role or rank than this server waits for
  busy = 4,        // no room now; try again
};

// Decides whether an authenticated peer is accepted.
using Admit = std::function<Verdict(const Identity& peer)>;

// Requires the same job and a fitting generation (a server of generation 0 takes any), and no
// particular role or rank.
Verdict same_job(const Identity& self, const Identity& peer);

// Mutual challenge-response over HMAC-SHA256, without I/O: bytes in, bytes out. Four messages:
//
//   client: hello    magic, role, job, generation, peer, lane, nonce      (136 bytes)
//   server: hello, proof = HMAC(secret, "server" | client hello | server hello)
//   client: proof = HMAC(secret, "client" | both hellos)
//   server: verdict, its generation, HMAC(secret, "verdict" | both hellos | verdict | generation)
//
// Both nonces are fresh, so nothing can be replayed; the labels differ, so nothing can be
// reflected; both identities are under every proof. All sizes are fixed: a stranger costs a few
// hundred bytes and two HMACs. Neither side uses, or sends, a byte of payload before the other has
// proved itself.
class Handshake {
 public:
  // The client's side. `server` is the peer that the client wants to reach: role, job and peer must
  // match, and so must the generation, unless that of the server is 0.
  static Handshake client(const Secret& secret, Identity self, Identity server);
  static Handshake server(const Secret& secret, Identity self, Admit admit);

  enum class State { running, done, refused };
  State state() const { return state_; }

  // The number of bytes for which it waits. Never read more than this from the other end before the
  // handshake is done.
  size_t wanted() const { return wanted_ - received_.size(); }
  // Takes at most wanted() bytes. Check state() after.
  void feed(std::span<const std::byte> bytes);
  // Takes the bytes to send now. Send them even after a refusal, since they may contain a verdict.
  std::vector<std::byte> take_output();

  const Identity& peer() const { return peer_; }  // authenticated once done
  // Once done: a key of this connection alone, since both hellos, and so both identities and
  // nonces, are in it. For Seal.
  Mac key() const;
  // For a refused handshake: the reason, and the error that the client's side should throw.
  const std::string& reason() const { return reason_; }
  ErrorCode code() const { return code_; }
  Verdict verdict() const { return verdict_; }

 private:
  Handshake(const Secret& secret, Identity self) : secret_(secret), self_(std::move(self)) {}

  enum class Waits { client_hello, server_hello, client_proof, verdict };
  void on_client_hello();
  void on_server_hello();
  void on_client_proof();
  void on_verdict();
  void expect(Waits waits, size_t size);
  void refuse(ErrorCode code, std::string reason);
  Mac prove(std::string_view label, std::span<const std::byte> extra = {}) const;

  Secret secret_;
  Identity self_;
  Identity expected_;
  Admit admit_;
  State state_ = State::running;
  Waits waits_ = Waits::client_hello;
  size_t wanted_ = 0;
  std::vector<std::byte> received_;
  std::vector<std::byte> output_;
  std::vector<std::byte> client_hello_;
  std::vector<std::byte> server_hello_;
  Identity peer_;
  Verdict verdict_ = Verdict::admitted;
  std::string reason_;
  ErrorCode code_ = ErrorCode::unavailable;
};

}  // namespace ductile::net
