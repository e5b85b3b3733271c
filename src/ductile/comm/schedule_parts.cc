#include <algorithm>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/comm/schedule_impl.h"

namespace ductile::comm {

void Builder::send(int peer, Chunks a, int rail) {
  if (a.count > 0) {
    list.steps.push_back(
        {.op = Op::send, .rail = static_cast<uint8_t>(rail), .peer = peer, .a = a});
  }
}

void Builder::receive(int peer, Chunks dst, int rail) {
  if (dst.count > 0) {
    list.steps.push_back(
        {.op = Op::receive, .rail = static_cast<uint8_t>(rail), .peer = peer, .dst = dst});
  }
}

void Builder::receive_reduce(int peer, Chunks dst, Chunks a, int rail) {
  if (dst.count > 0) {
    list.steps.push_back({.op = Op::receive_reduce,
                          .rail = static_cast<uint8_t>(rail),
                          .peer = peer,
                          .dst = dst,
                          .a = a});
  }
}

void Builder::reduce(Chunks dst, Chunks a, Chunks b) {
  if (dst.count > 0) list.steps.push_back({.op = Op::reduce, .dst = dst, .a = a, .b = b});
}

void Builder::copy(Chunks dst, Chunks a) {
  if (dst.count > 0) list.steps.push_back({.op = Op::copy, .dst = dst, .a = a});
}

void Builder::round(Chunks dst) {
  if (wire && dst.count > 0) list.steps.push_back({.op = Op::round, .dst = dst});
}

std::vector<Chunks> split(Chunks run, int pieces) {
  pieces = std::clamp(pieces, 1, std::max(run.count, 1));
  std::vector<Chunks> out;
  for (int i = 0; i < pieces; ++i) {
    const auto cut = [&](int k) {
      return run.begin + static_cast<int32_t>(static_cast<int64_t>(run.count) * k / pieces);
    };
    out.push_back({run.buffer, cut(i), cut(i + 1) - cut(i)});
  }
  return out;
}

BufferName ring_reduce_scatter(Builder& b, const RankGroup& group, const Segments& segment,
                               BufferName from, BufferName to, int pieces, int rail,
                               bool reversed) {
  const int n = group.size();
  if (n == 1) return from;
  const int step = reversed ? -1 : 1;
  const int next = group.at(group.index + step);
  const int previous = group.at(group.index - step);
  const auto seg = [&](int i) { return split(segment(((i % n) + n) % n), pieces); };
  for (int t = 0; t < n - 1; ++t) {
    const auto out = seg(group.index - step * (t + 1));
    const auto in = seg(group.index - step * (t + 2));
    for (size_t q = 0; q < std::max(out.size(), in.size()); ++q) {
      if (q < out.size()) b.send(next, in_buffer(t == 0 ? from : to, out[q]), rail);
      if (q < in.size()) {
        b.receive_reduce(previous, in_buffer(to, in[q]), in_buffer(from, in[q]), rail);
      }
    }
  }
  return to;
}

void ring_all_gather(Builder& b, const RankGroup& group, const Segments& segment, BufferName from,
                     int pieces, int rail, bool reversed) {
  const int n = group.size();
  const int step = reversed ? -1 : 1;
  const int next = group.at(group.index + step);
  const int previous = group.at(group.index - step);
  const auto seg = [&](int i) { return split(segment(((i % n) + n) % n), pieces); };
  for (int t = 0; t < n - 1; ++t) {
    const auto out = seg(group.index - step * t);
    const auto in = seg(group.index - step * (t + 1));
    for (size_t q = 0; q < std::max(out.size(), in.size()); ++q) {
      if (q < out.size()) b.send(next, in_buffer(t == 0 ? from : BufferName::out, out[q]), rail);
      if (q < in.size()) b.receive(previous, in_buffer(BufferName::out, in[q]), rail);
    }
  }
}

namespace {

std::vector<int> factors(int n) {
  std::vector<int> out;
  for (int p = 2; n > 1; ++p) {
    for (; n % p == 0; n /= p) out.push_back(p);
  }
  return out;
}

}  // namespace

BufferName halving_reduce_scatter(Builder& b, const RankGroup& group, const SegmentRuns& segments,
                                  BufferName from, BufferName to, int pieces, int rail) {
  int begin = 0;
  int count = group.size();
  BufferName source = from;
  for (const int p : factors(group.size())) {
    const int part = count / p;  // segments that each member of the subgroup keeps
    const int mine = (group.index - begin) / part;
    const int offset = (group.index - begin) % part;
    for (int k = 1; k < p; ++k) {
      const int out = (mine + k) % p;
      const int in = (mine + p - k) % p;
      const auto sent = split(segments(begin + out * part, part), pieces);
      const auto kept = split(segments(begin + mine * part, part), pieces);
      const BufferName base = k == 1 ? source : to;
      for (size_t q = 0; q < std::max(sent.size(), kept.size()); ++q) {
        if (q < sent.size()) {
          b.send(group.at(begin + out * part + offset), in_buffer(source, sent[q]), rail);
        }
        if (q < kept.size()) {
          b.receive_reduce(group.at(begin + in * part + offset), in_buffer(to, kept[q]),
                           in_buffer(base, kept[q]), rail);
        }
      }
    }
    begin += mine * part;
    count = part;
    source = to;
  }
  return source;
}

void doubling_all_gather(Builder& b, const RankGroup& group, const SegmentRuns& segments,
                         int pieces, int rail) {
  const std::vector<int> all = factors(group.size());
  int part = 1;
  for (auto it = all.rbegin(); it != all.rend(); ++it) {
    const int p = *it;
    const int begin = group.index / (part * p) * (part * p);
    const int mine = (group.index - begin) / part;
    const int offset = (group.index - begin) % part;
    for (int k = 1; k < p; ++k) {
      const int to = (mine + k) % p;
      const int from = (mine + p - k) % p;
      const auto sent = split(segments(begin + mine * part, part), pieces);
      const auto got = split(segments(begin + from * part, part), pieces);
      for (size_t q = 0; q < std::max(sent.size(), got.size()); ++q) {
        if (q < sent.size()) b.send(group.at(begin + to * part + offset), sent[q], rail);
        if (q < got.size()) b.receive(group.at(begin + from * part + offset), got[q], rail);
      }
    }
    part *= p;
  }
}

BufferName direct_reduce_scatter(Builder& b, const RankGroup& group, const Segments& segment,
                                 BufferName from, BufferName to, int pieces, int rail) {
  const int n = group.size();
  for (int k = 1; k < n; ++k) {
    const auto sent = split(segment((group.index + k) % n), pieces);
    const auto kept = split(segment(group.index), pieces);
    const BufferName base = k == 1 ? from : to;
    for (size_t q = 0; q < std::max(sent.size(), kept.size()); ++q) {
      if (q < sent.size()) b.send(group.at(group.index + k), in_buffer(from, sent[q]), rail);
      if (q < kept.size()) {
        b.receive_reduce(group.at(group.index - k), in_buffer(to, kept[q]),
                         in_buffer(base, kept[q]), rail);
      }
    }
  }
  return n == 1 ? from : to;
}

void direct_all_gather(Builder& b, const RankGroup& group, const Segments& segment, BufferName from,
                       int pieces, int rail) {
  const int n = group.size();
  for (int k = 1; k < n; ++k) {
    const auto sent = split(segment(group.index), pieces);
    const auto got = split(segment((group.index + n - k) % n), pieces);
    for (size_t q = 0; q < std::max(sent.size(), got.size()); ++q) {
      if (q < sent.size()) b.send(group.at(group.index + k), in_buffer(from, sent[q]), rail);
      if (q < got.size()) {
        b.receive(group.at(group.index - k), in_buffer(BufferName::out, got[q]), rail);
      }
    }
  }
}

}  // namespace ductile::comm
