#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ductile/graph/graph.h"

namespace ductile::graph {

// A set of operators of one graph, as bits. Sets are compared and combined only with sets of the
// same capacity.
class OpSet {
 public:
  OpSet() = default;
  explicit OpSet(int capacity) : words_((static_cast<size_t>(capacity) + 63) / 64) {}

  void insert(OpId op) { words_[op >> 6] |= uint64_t{1} << (op & 63); }
  void erase(OpId op) { words_[op >> 6] &= ~(uint64_t{1} << (op & 63)); }
  bool contains(OpId op) const { return words_[op >> 6] >> (op & 63) & 1; }

  int size() const {
    int n = 0;
    for (uint64_t w : words_) n += std::popcount(w);
    return n;
  }
  bool empty() const {
    for (uint64_t w : words_) {
      if (w != 0) return false;
    }
    return true;
  }
  bool is_subset_of(const OpSet& other) const {
    for (size_t i = 0; i < words_.size(); ++i) {
      if ((words_[i] & ~other.words_[i]) != 0) return false;
    }
    return true;
  }
  OpSet& operator|=(const OpSet& other) {
    for (size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
    return *this;
  }
  OpSet& operator&=(const OpSet& other) {
    for (size_t i = 0; i < words_.size(); ++i) words_[i] &= other.words_[i];
    return *this;
  }
  OpSet& operator-=(const OpSet& other) {
    for (size_t i = 0; i < words_.size(); ++i) words_[i] &= ~other.words_[i];
    return *this;
  }
  friend OpSet operator|(OpSet a, const OpSet& b) { return a |= b; }
  friend OpSet operator&(OpSet a, const OpSet& b) { return a &= b; }
  friend OpSet operator-(OpSet a, const OpSet& b) { return a -= b; }
  bool operator==(const OpSet&) const = default;

  template <class F>
  void for_each(F&& f) const {  // ascending
    for (size_t i = 0; i < words_.size(); ++i) {
      for (uint64_t w = words_[i]; w != 0; w &= w - 1) {
        f(static_cast<OpId>(i * 64 + static_cast<size_t>(std::countr_zero(w))));
      }
    }
  }
  std::vector<OpId> to_vector() const {
    std::vector<OpId> out;
    for_each([&](OpId op) { out.push_back(op); });
    return out;
  }
  uint64_t hash() const {
    uint64_t h = 0x9E3779B97F4A7C15u;
    for (uint64_t w : words_) {
      h = (h ^ w) * 0xFF51AFD7ED558CCDu;
      h ^= h >> 32;
    }
    return h;
  }

 private:
  std::vector<uint64_t> words_;
};

struct OpSetHash {
  size_t operator()(const OpSet& s) const { return s.hash(); }
};

}  // namespace ductile::graph
