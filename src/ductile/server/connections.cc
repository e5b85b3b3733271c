#include <span>
#include <string_view>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/link/addresses.h"
#include "ductile/server/connections_impl.h"

namespace ductile::server {

using control::WorkerId;

Connections::Connections(net::Loop& loop, const net::Address& listen, const net::Secret& secret,
                         const std::string& job, net::OnRefusal on_refusal, OnEvent on_event,
                         std::function<void()> on_ready)
    : loop_(loop),
      on_refusal_(on_refusal),
      on_event_(std::move(on_event)),
      on_ready_(std::move(on_ready)),
      gate_(
          loop, net::Listener(listen), secret, link::controller_identity(job), {},
          [self = link::controller_identity(job)](const net::Identity& peer) {
            if (peer.role != self.role || peer.peer < 1) return net::Verdict::unexpected;
            return net::same_job(self, peer);
          },
          on_refusal, [this](net::Admission admission) { admit(std::move(admission)); }) {}

// Without waiting: of a worker that is stopped the buffers fill up. What is dropped meanwhile is no
// loss, since any instruction may be lost, and the machine repeats those that matter.
void Connections::send(const control::Instruction& instruction) {
  const auto found = peers_.find(instruction.worker);
  if (found == peers_.end()) return;
  Peer& peer = found->second;
  const std::string text = dump_json(control::to_json(instruction));
  try {
    if (peer.channel.offer(std::as_bytes(std::span(text)))) {
      peer.took = loop_.now();
    } else if (loop_.now() > peer.took + kPatience) {
      fail(ErrorCode::deadline, "it took nothing for {} s; it comes back when it wakes up",
           kPatience.count());
    }
    look_for_room(peer);
  } catch (const Error& e) {
    close(instruction.worker, e);
  }
}

void Connections::look_for_room(Peer& peer) {
  peer.watch.set(peer.channel.unsent() > 0 ? net::Interest::both : net::Interest::read);
}

void Connections::flush(WorkerId worker) {
  const auto found = peers_.find(worker);
  if (found == peers_.end()) return;
  Peer& peer = found->second;
  const size_t before = peer.channel.unsent();
  if (before == 0) return;
  try {
    peer.channel.flush();
    if (peer.channel.unsent() < before) peer.took = loop_.now();
    look_for_room(peer);
  } catch (const Error& e) {
    close(worker, e);
  }
}

void Connections::serve() {
  std::vector<WorkerId> workers;
  for (const auto& [worker, peer] : peers_) workers.push_back(worker);
  for (const WorkerId worker : workers) {
    receive(worker);
    flush(worker);
  }
}

void Connections::admit(net::Admission admission) {
  const auto worker = static_cast<WorkerId>(admission.peer.peer);
  peers_.erase(worker);  // it dialled again, so the old connection is dead
  const auto [place, fresh] = peers_.emplace(
      worker, Peer{net::Channel(std::move(admission.socket), *std::move(admission.seal)), {}, {}});
  const net::Socket& socket = place->second.channel.socket();
  try {
    place->second.watch =
        loop_.watch(socket.fd(), net::Interest::read, [this](net::Ready) { on_ready_(); });
  } catch (const Error& e) {  // no memory: it dials again
    if (on_refusal_) on_refusal_({socket.peer(), e.message()});
    peers_.erase(place);
  }
  on_ready_();
}

void Connections::receive(WorkerId worker) {
  while (true) {
    const auto found = peers_.find(worker);
    if (found == peers_.end()) return;  // closed by what the last report brought about
    try {
      const auto payload = found->second.channel.try_receive();
      if (!payload) return;
      const std::string_view text(reinterpret_cast<const char*>(payload->data()), payload->size());
      control::WorkerStatus report = control::worker_status_from_json(parse_json(text));
      if (report.worker != worker)
        fail(ErrorCode::invalid_argument, "worker {} reports as worker {}", worker, report.worker);
      on_event_(control::WorkerReported{std::move(report)});
    } catch (const Error& e) {
      close(worker, e);
      return;
    }
  }
}

// A worker that says that it ends is not refused: its event is told, as far as it is news.
void Connections::close(WorkerId worker, const Error& why) {
  const auto found = peers_.find(worker);
  if (found == peers_.end()) return;
  const bool has_ended = why.code() == ErrorCode::peer_lost && found->second.channel.ended();
  if (on_refusal_ && !has_ended) on_refusal_({found->second.channel.socket().peer(), why.what()});
  peers_.erase(found);
  on_event_(control::ConnectionClosed{worker});
}

}  // namespace ductile::server
