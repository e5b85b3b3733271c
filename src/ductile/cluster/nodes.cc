#include <algorithm>
#include <chrono>
#include <utility>

#include "ductile/base/clock.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/log.h"
#include "ductile/cluster/nodes_impl.h"
#include "ductile/cluster/store.h"

namespace ductile::cluster {
namespace {

// A host that has not answered by then may be dead, and jobs go where others are.
constexpr std::chrono::seconds kFirstAnswers{5};

net::Clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<net::Clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

Nodes::Nodes(net::Loop& loop, const spec::Cluster& cluster, Engine& engine, StoreWriter& writer,
             double grace)
    : loop_(loop),
      engine_(engine),
      writer_(writer),
      grace_(grace),
      first_answers_(loop.now() + kFirstAnswers),
      first_look_(loop.at(first_answers_, [this] { look(); })) {
  const double now = wall_seconds();
  std::vector<NodeRecord> records;
  std::vector<const spec::NodeGroup*> groups;
  for (const spec::NodeGroup& group : cluster.groups)
    for (int64_t n = 0; n < group.count; ++n) {
      NodeRecord& record = records.emplace_back();
      record.node = group.hosts[static_cast<size_t>(n)];
      record.type = group.type;
      record.devices = group.devices;
      record.region = group.region;
      record.since = now;
      groups.push_back(&group);
    }
  nodes_.resize(records.size());
  for (size_t n = 0; n < records.size(); ++n) {
    Node& node = nodes_[n];
    node.record = records[n];
    node.notice = groups[n]->notice;
    node.leave = groups[n]->leave;
    node.record.why = engine_.trouble(static_cast<int32_t>(n));
    node.down = !node.record.why.empty();
    node.lost = node.awaited = node.down && engine_.absent(static_cast<int32_t>(n));
    node.coming = comes(static_cast<int32_t>(n));
    if (node.record.why.empty()) node.record.state = NodeState::up;
    if (node.lost) node.record.state = NodeState::lost;
    records[n] = node.record;
    node.hardware = engine_.hardware(static_cast<int32_t>(n));
    if (!usable(static_cast<int32_t>(n)) && !node.lost)
      node.grace = loop_.after(duration_of(grace_), [this, &node] { lose(node); });
  }
  writer_.write([records, now](Change& change) { change.set_nodes(records, now); });
  engine_.call_on_change([this] { look(); });
}

bool Nodes::comes(int32_t node) const {
  return loop_.now() < first_answers_ && engine_.coming(node);
}

int64_t Nodes::devices() const {
  int64_t sum = 0;
  for (const Node& node : nodes_) sum += node.record.devices;
  return sum;
}

int64_t Nodes::most_devices() const {
  int64_t most = 0;
  for (const Node& node : nodes_) most = std::max(most, node.record.devices);
  return most;
}

int32_t Nodes::find(std::string_view name) const {
  for (int32_t n = 0; n < count(); ++n)
    if (this->name(n) == name) return n;
  return -1;
}

std::optional<net::Deadline> Nodes::stays_until(int32_t node) const {
  const Node& one = at(node);
  if (one.drained || one.lost || !one.stays_until || *one.stays_until <= loop_.now()) return {};
  return one.stays_until;
}

void Nodes::drained(const std::set<std::string>& names) {
  for (Node& node : nodes_) node.drained = names.contains(node.record.node);
  if (on_change_) on_change_();
}

void Nodes::look() {
  bool news = false;
  for (int32_t n = 0; n < count(); ++n) {
    Node& node = nodes_[static_cast<size_t>(n)];
    news = look_at_hardware(n) || news;
    const bool coming = comes(n), was_coming = std::exchange(node.coming, coming);
    news = was_coming != coming || news;
    const std::string leaves = engine_.leaving(n), trouble = engine_.trouble(n);
    const bool leaving = !leaves.empty(), down = !trouble.empty(), up = !leaving && !down;
    const bool absent = down && !leaving && engine_.absent(n);
    const std::string& why = leaving ? leaves : trouble;
    const bool as_before = leaving == node.leaving && down == node.down;
    if (up == usable(n) && as_before && (!absent || node.lost)) {
      const bool is_known = std::exchange(node.record.why, why) == why && !(was_coming && !coming);
      if (!up && !is_known) told(node);
      continue;
    }
    news = true;
    node.record.why = why;
    if (!leaving || down) node.stays_until.reset();
    if (leaving && !node.leaving && !down) begin_notice(n);
    node.leaving = leaving;
    node.down = down;
    node.lost = absent;
    node.record.state = up ? NodeState::up : absent ? NodeState::lost : NodeState::away;
    node.grace.cancel();
    if (down && !absent)
      node.grace = loop_.after(duration_of(grace_), [this, &node] { lose(node); });
    node.record.since = wall_seconds();
    told(node);
    node.awaited = absent || (node.awaited && !up);
  }
  if (news && on_change_) on_change_();
}

// When it began is known of a node alone that was there before it.
void Nodes::begin_notice(int32_t n) {
  Node& node = nodes_[static_cast<size_t>(n)];
  if (node.notice <= 0 || node.record.state != NodeState::up) return;
  const double leave = node.leave > 0 || !find_leave_ ? node.leave : find_leave_(n);
  if (leave > 0 && leave < node.notice)
    node.stays_until = loop_.now() + duration_of(node.notice - leave);
}

// Whether it is another. What has failed since is said, since it may be of a job that runs.
bool Nodes::look_at_hardware(int32_t n) {
  Node& node = nodes_[static_cast<size_t>(n)];
  if (node.hardware == engine_.hardware(n)) return false;
  ++hardware_changes_;
  const auto before = std::exchange(node.hardware, engine_.hardware(n));
  if (!before || !node.hardware) return true;
  for (const server::Gpu& gpu : node.hardware->gpus) {
    const auto known = std::ranges::find(before->gpus, gpu.id, &server::Gpu::id);
    const std::string was = known == before->gpus.end() ? "" : known->trouble;
    if (gpu.trouble == was) continue;
    log_line(fmt::format("node {}: GPU {} ({}): {}", node.record.node, gpu.id, gpu.name,
                         gpu.trouble.empty() ? "it is back" : gpu.trouble));
    const nlohmann::json body = {
        {"node", node.record.node}, {"gpu", gpu.id}, {"name", gpu.name}, {"trouble", gpu.trouble}};
    writer_.write_newest(fmt::format("gpu {} {}", gpu.id, node.record.node),
                         [body = dump_json(body)](Change& change) {
                           change.record(0, "gpu", body, wall_seconds());
                         });
  }
  if (node.hardware->trouble != before->trouble && !node.hardware->trouble.empty())
    log_line(fmt::format("node {}: {}", node.record.node, node.hardware->trouble));
  return true;
}

void Nodes::lose(Node& node) {
  node.lost = true;
  node.record.state = NodeState::lost;
  node.record.since = wall_seconds();
  told(node);
  if (on_change_) on_change_();
}

// At a start all nodes are called, which is no news for the log. A node that is only on its way was
// not lost by anybody.
void Nodes::told(const Node& node) {
  const bool up = node.record.state == NodeState::up;
  if (!node.coming || node.record.state != NodeState::away)
    log_line(fmt::format("node {} is {}{}{}", node.record.node,
                         node.awaited && !up ? "not there" : to_string(node.record.state),
                         node.record.why.empty() ? "" : ": ", node.record.why));
  writer_.write_newest("node " + node.record.node,
                       [record = node.record](Change& change) { change.set_node(record); });
}

std::vector<Holding> Nodes::holdings(const spec::Allocation& allocation) const {
  std::vector<Holding> out;
  for (const spec::NodeShare& share : allocation) out.push_back({name(share.node), share.devices});
  return out;
}

}  // namespace ductile::cluster
