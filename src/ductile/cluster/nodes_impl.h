#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ductile/cluster/engine_impl.h"
#include "ductile/cluster/records.h"
#include "ductile/cluster/store_writer_impl.h"
#include "ductile/net/loop.h"
#include "ductile/spec/cluster.h"

namespace ductile::cluster {

// The nodes of a service: their names, and what state each is in, which it also writes into the
// store. A node that cannot be used keeps its jobs for `grace` seconds; then it counts as lost.
class Nodes {
 public:
  // The others must outlive it. All nodes begin as ones that have not answered yet, and keep their
  // jobs for the grace, too.
  Nodes(net::Loop& loop, const spec::Cluster& cluster, Engine& engine, StoreWriter& writer,
        double grace);

  int32_t count() const { return static_cast<int32_t>(nodes_.size()); }
  int64_t devices() const;       // of all
  int64_t most_devices() const;  // of the largest
  int64_t devices(int32_t node) const { return at(node).record.devices; }
  const std::string& name(int32_t node) const { return at(node).record.node; }
  const NodeRecord& record(int32_t node) const { return at(node).record; }
  double notice(int32_t node) const { return at(node).notice; }  // seconds; 0: none
  int32_t find(std::string_view name) const;                     // -1: there is none

  // Something can be started there now.
  bool usable(int32_t node) const { return at(node).record.state == NodeState::up; }
  // Nothing is to be granted there now. Not, for some seconds, of one that is being called for the
  // first time, as all are when a service begins: else who answers first would get all jobs.
  bool away(int32_t node) const { return !usable(node) && !at(node).coming; }
  // Jobs may stay there: it is neither drained nor lost, nor about to be taken back.
  bool keeps_jobs(int32_t node) const {
    return !at(node).drained && !at(node).lost && !at(node).leaving;
  }

  // Of a node that is about to be taken back: until when training jobs may use what they have
  // there. Nothing once that is over, and where they may not.
  std::optional<net::Deadline> stays_until(int32_t node) const;

  void drained(const std::set<std::string>& names);
  // What there is, as far as the node has said so; also of one that has gone since.
  const std::optional<server::NodeHardware>& hardware(int32_t node) const {
    return at(node).hardware;
  }
  int64_t hardware_changes() const { return hardware_changes_; }  // so far, of any node
  // Says how long before the end of a notice its jobs are to leave a node whose cluster file does
  // not say it, in seconds. It is asked when the notice comes.
  void call_for_leave(std::function<double(int32_t)> find) { find_leave_ = std::move(find); }
  // When usable(), keeps_jobs() or hardware() says something else.
  void call_on_change(std::function<void()> on_change) { on_change_ = std::move(on_change); }

  std::vector<Holding> holdings(const spec::Allocation& allocation) const;

 private:
  struct Node {
    NodeRecord record;
    bool drained = false, lost = false, leaving = false;
    bool coming = false;           // Engine::coming()
    bool down = false;             // nobody answers there
    bool awaited = false;          // it was absent (Engine), and has not been up since
    double notice = 0, leave = 0;  // spec::NodeGroup
    std::optional<net::Deadline> stays_until;
    std::optional<server::NodeHardware> hardware;
    net::Loop::Timer grace;
  };
  const Node& at(int32_t node) const { return nodes_[static_cast<size_t>(node)]; }
  bool comes(int32_t node) const;
  void look();
  void lose(Node& node);
  void begin_notice(int32_t n);
  void told(const Node& node);
  bool look_at_hardware(int32_t n);

  net::Loop& loop_;
  Engine& engine_;
  StoreWriter& writer_;
  const double grace_;
  const net::Deadline first_answers_;
  std::vector<Node> nodes_;
  net::Loop::Timer first_look_;
  int64_t hardware_changes_ = 0;
  std::function<void()> on_change_;
  std::function<double(int32_t)> find_leave_;
};

}  // namespace ductile::cluster
