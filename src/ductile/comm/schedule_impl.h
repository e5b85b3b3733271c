#pragma once

#include <functional>
#include <span>
#include <vector>

#include "ductile/comm/schedule.h"

// The parts that step lists are put together from. Each appends one rank's steps to a list.
namespace ductile::comm {

// Some ranks in an order, and the place of the rank whose list is made among them.
struct RankGroup {
  std::vector<int> ranks;
  int index = 0;

  int size() const { return static_cast<int>(ranks.size()); }
  int at(int i) const { return ranks[(i % size() + size()) % size()]; }
};

// The run of chunks that is segment i of a group's data.
using Segments = std::function<Chunks(int i)>;

struct Builder {
  Schedule& list;
  bool wire = false;

  void send(int peer, Chunks a, int rail = 0);
  void receive(int peer, Chunks dst, int rail = 0);
  void receive_reduce(int peer, Chunks dst, Chunks a, int rail = 0);
  void reduce(Chunks dst, Chunks a, Chunks b);
  void copy(Chunks dst, Chunks a);
  void round(Chunks dst);  // only where the wire format is narrower
};

inline Chunks in_buffer(BufferName buffer, Chunks c) { return {buffer, c.begin, c.count}; }

// Ring reduce-scatter: group member i ends with the sum of segment i, in `to`. Values are first
// read from `from`. `pieces`: each segment moves in at most so many messages. Returns where the
// sums are
// (`from` for a group of one). reversed: the other way round the ring.
BufferName ring_reduce_scatter(Builder& b, const RankGroup& group, const Segments& segment,
                               BufferName from, BufferName to, int pieces, int rail,
                               bool reversed = false);
// Ring all-gather of segment i of member i, from `from` (own segment) to `out`.
void ring_all_gather(Builder& b, const RankGroup& group, const Segments& segment, BufferName from,
                     int pieces, int rail, bool reversed = false);

// Recursive halving (factors of the group's size other than 2 by direct exchange), and its reverse.
// segments(begin, count) is one run of chunks.
using SegmentRuns = std::function<Chunks(int begin, int count)>;
BufferName halving_reduce_scatter(Builder& b, const RankGroup& group, const SegmentRuns& segments,
                                  BufferName from, BufferName to, int pieces, int rail);
void doubling_all_gather(Builder& b, const RankGroup& group, const SegmentRuns& segments,
                         int pieces, int rail);

// Every member sends segment j to member j, who adds them: its own first, then cyclically.
BufferName direct_reduce_scatter(Builder& b, const RankGroup& group, const Segments& segment,
                                 BufferName from, BufferName to, int pieces, int rail);
void direct_all_gather(Builder& b, const RankGroup& group, const Segments& segment, BufferName from,
                       int pieces, int rail);

// Splits a run of chunks into at most `pieces` runs.
std::vector<Chunks> split(Chunks run, int pieces);

// The algorithms; each fills `list`, whose rank, num_ranks and algorithm are set.
void ring_all_reduce(Schedule& list, const ScheduleOptions& options);
void recursive_doubling_all_reduce(Schedule& list, const ScheduleOptions& options);
void halving_doubling_all_reduce(Schedule& list, const ScheduleOptions& options);
void direct_all_reduce(Schedule& list, const ScheduleOptions& options);
void canonical_all_reduce(Schedule& list, const ScheduleOptions& options);
void torus_all_reduce(Schedule& list, const Topology& topology, const ScheduleOptions& options);
void hierarchical_all_reduce(Schedule& list, const Topology& topology,
                             const ScheduleOptions& options);

void make_reduce_scatter(Schedule& list, const ScheduleOptions& options);
void make_all_gather(Schedule& list, const ScheduleOptions& options);
void make_broadcast(Schedule& list, const ScheduleOptions& options);
void make_all_to_all(Schedule& list, const ScheduleOptions& options);
void make_barrier(Schedule& list);

}  // namespace ductile::comm
