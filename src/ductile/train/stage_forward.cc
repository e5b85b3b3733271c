#include "ductile/train/stage_forward.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include "ductile/base/error.h"

namespace ductile::train {
namespace {

constexpr size_t kMostDims = 12;
// Type, number of dimensions, sizes, strides: kernels choose by how a tensor lies in memory.
using Header = std::array<int64_t, 2 + 2 * kMostDims>;

std::span<std::byte> dense_bytes(const at::Tensor& dense) {
  return {static_cast<std::byte*>(dense.data_ptr()), dense.nbytes()};
}

// One of each of the values that an expanded tensor repeats.
at::Tensor without_repeats(at::Tensor tensor) {
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.stride(d) == 0 && tensor.size(d) > 1) tensor = tensor.narrow(d, 0, 1);
  }
  return tensor;
}

// The values travel packed. Where they lie otherwise at the sender, they do so at the receiver.
void send_tensor(parallel::Exchange& exchange, int to, const at::Tensor& tensor) {
  const auto dims = static_cast<size_t>(tensor.dim());
  DUCTILE_CHECK(dims <= kMostDims, "a tensor of {} dimensions", dims);
  Header header{};
  header[0] = static_cast<int64_t>(tensor.scalar_type());
  header[1] = static_cast<int64_t>(dims);
  std::ranges::copy(tensor.sizes(), header.begin() + 2);
  std::ranges::copy(tensor.strides(), header.begin() + 2 + kMostDims);
  exchange.send(to, std::as_bytes(std::span(header)));
  const at::Tensor dense =
      tensor.is_non_overlapping_and_dense() ? tensor : without_repeats(tensor).contiguous();
  if (dense.numel() > 0) exchange.send(to, dense_bytes(dense));
}

at::Tensor receive_tensor(parallel::Exchange& exchange, int from) {
  Header header{};
  exchange.receive(from, std::as_writable_bytes(std::span(header)));
  const auto dims = static_cast<size_t>(header[1]);
  DUCTILE_CHECK(dims <= kMostDims, "a tensor of {} dimensions", dims);
  const at::IntArrayRef sizes(header.data() + 2, dims);
  const at::IntArrayRef strides(header.data() + 2 + kMostDims, dims);
  const at::TensorOptions type(static_cast<at::ScalarType>(header[0]));
  const at::Tensor tensor = at::empty_strided(sizes, strides, type);
  if (tensor.is_non_overlapping_and_dense()) {
    if (tensor.numel() > 0) exchange.receive(from, dense_bytes(tensor));
    return tensor;
  }
  const at::Tensor once = without_repeats(tensor);
  const at::Tensor dense = at::empty(once.sizes(), type);
  if (dense.numel() > 0) exchange.receive(from, dense_bytes(dense));
  once.copy_(dense);
  return tensor;
}

}  // namespace

StageForward::StageForward(nn::OperatorGraph graph, std::vector<int> hosts,
                           parallel::Exchange& exchange)
    : graph_(std::move(graph)), hosts_(std::move(hosts)), exchange_(exchange) {
  const auto& ops = graph_.operators();
  DUCTILE_CHECK(hosts_.size() == ops.size(), "{} hosts of {} operators", hosts_.size(), ops.size());
  for (size_t op = 0; op < ops.size(); ++op) {
    for (const nn::Source& source : ops[op].inputs) {
      readers_[source].insert(hosts_[op]);
      last_[source] = op;
    }
  }
  readers_[graph_.results().front()].insert(0);
  last_[graph_.results().front()] = ops.size();
}

// To all others: whether one more pass follows.
void StageForward::announce(uint64_t passes) {
  for (int to = 1; to < exchange_.layout().num_workers(); ++to)
    exchange_.send(to, std::as_bytes(std::span(&passes, 1)));
}

at::Tensor StageForward::forward(const nn::Tensors& inputs) {
  announce(1);
  return pass(inputs);
}

void StageForward::end() { announce(0); }

void StageForward::follow() {
  while (true) {
    uint64_t passes = 0;
    exchange_.receive(0, std::as_writable_bytes(std::span(&passes, 1)));
    if (passes == 0) return;
    pass({});
  }
}

// All workers go through the operators in one order, so no two wait for each other.
at::Tensor StageForward::pass(const nn::Tensors& inputs) {
  const at::NoGradGuard no_grad;
  const int rank = exchange_.rank();
  const auto& ops = graph_.operators();
  Tensors here;
  for (int i = 0; i < graph_.num_inputs(); ++i) {
    const nn::Source source{nn::kModelInput, i};
    if (rank == 0) here[source] = inputs.at(static_cast<size_t>(i));
    share(source, 0, here);
  }
  bool made = false;  // by the operator before it, with a shortcut
  for (size_t op = 0; op < ops.size(); ++op) {
    const auto number = static_cast<int>(op);
    if (hosts_[op] == rank && !std::exchange(made, false)) {
      nn::Tensors in;
      for (const nn::Source& source : ops[op].inputs) in.push_back(here.at(source));
      const nn::OperatorGraph::Run* const both = graph_.shortcut(number);
      made = both != nullptr && hosts_[op + 1] == rank;
      nn::Tensors out = made ? (*both)(in) : ops[op].run(in);
      for (size_t i = 0; i < out.size(); ++i)
        here[{made ? number + 1 : number, static_cast<int>(i)}] = std::move(out[i]);
    }
    for (int i = 0; i < ops[op].num_outputs; ++i) share({number, i}, hosts_[op], here);
    std::erase_if(here, [&](const auto& entry) {
      const auto last = last_.find(entry.first);
      return last == last_.end() || last->second <= op;
    });
  }
  return rank == 0 ? here.at(graph_.results().front()) : at::Tensor();
}

void StageForward::share(const nn::Source& source, int from, Tensors& here) {
  const auto readers = readers_.find(source);
  if (readers == readers_.end()) return;
  for (const int to : readers->second) {
    if (to == from) continue;
    if (exchange_.rank() == from) send_tensor(exchange_, to, here.at(source));
    if (exchange_.rank() == to) here[source] = receive_tensor(exchange_, from);
  }
}

}  // namespace ductile::train
