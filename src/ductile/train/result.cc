#include "ductile/train/result.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/base/log.h"
#include "ductile/ckpt/digest.h"
#include "ductile/ckpt/safetensors.h"
#include "ductile/train/part_stream.h"

namespace ductile::train {
namespace {

size_t bytes_in(int64_t floats) { return static_cast<size_t>(floats) * sizeof(float); }

// What every worker has.
PartStream::Tensor whole_tensor(const ckpt::TensorView& view) {
  PartStream::Tensor out;
  out.info = {view.name, view.dtype, view.shape, static_cast<int64_t>(view.bytes.size()), 0};
  out.parts = {{PartStream::kLeader, view.bytes.size(), view.bytes.data()}};
  return out;
}

// The parameters come first; in the memory of the others lies what is of no use.
std::vector<PartStream::Tensor> tensors_to_deploy(const JobState::Deployed& model,
                                                  const PartSaver::Shares& shares) {
  std::vector<PartStream::Tensor> out;
  for (const ckpt::TensorView& view : model.views) {
    PartStream::Tensor tensor = whole_tensor(view);
    if (out.size() < shares.size()) {
      tensor.parts.clear();
      for (const PartSaver::Share& s : shares[out.size()]) {
        tensor.parts.push_back({s.rank, bytes_in(s.size), view.bytes.data() + bytes_in(s.begin)});
      }
    }
    out.push_back(std::move(tensor));
  }
  return out;
}

std::vector<PartStream::Tensor> tensors_of_state(JobState& state, const PartSaver::Shares& shares,
                                                 int rank) {
  std::vector<JobState::Piece> own;
  for (size_t i = 0; i < shares.size(); ++i) {
    for (const PartSaver::Share& s : shares[i]) {
      if (s.rank == rank) own.push_back({i, s.begin, s.size});
    }
  }
  std::vector<ckpt::TensorView> views;
  std::vector<ckpt::TensorPiece> of;
  state.add_pieces(own, views, of);
  std::map<std::pair<std::string, int64_t>, const std::byte*> places;
  for (size_t i = 0; i < views.size(); ++i) places[{of[i].of, of[i].begin}] = views[i].bytes.data();

  std::vector<PartStream::Tensor> out;
  for (size_t i = 0; i < shares.size(); ++i) {
    const FlatModel::Entry& parameter = state.flat.parameters()[i];
    for (const std::string& name : state.tensor_names(parameter)) {
      PartStream::Tensor& tensor = out.emplace_back();
      tensor.info = {name, DType::f32, parameter.shape,
                     static_cast<int64_t>(bytes_in(parameter.size)), 0};
      for (const PartSaver::Share& s : shares[i]) {
        const std::byte* const place = s.rank == rank ? places.at({name, s.begin}) : nullptr;
        tensor.parts.push_back({s.rank, bytes_in(s.size), place});
      }
    }
  }
  const std::vector<bool> none(shares.size(), false);
  for (const ckpt::TensorView& view : state.tensors_of(none, /*others=*/true)) {
    out.push_back(whole_tensor(view));
  }
  return out;
}

}  // namespace

Digests write_result(Replica& replica, const fs::path& model_file, bool written_later) {
  Digests out;
  const JobState::Deployed model = replica.deployed();
  out.weights = ckpt::tensors_digest(model.views);
  try {
    replica.write_model(model_file, model);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::unavailable || !written_later) throw;
    log_line(e.what());
  }
  out.state = replica.state().digest().value();
  return out;
}

// The file comes last: a leader that cannot write it has nothing more to ask of the others.
std::optional<Digests> write_result_in_parts(Replica& replica, parallel::Exchange& exchange,
                                             const PartSaver::Shares& shares,
                                             const fs::path& model_file) {
  using Infos = std::span<const ckpt::TensorInfo>;
  Digests out;
  PartStream state(exchange, tensors_of_state(replica.state(), shares, exchange.rank()));
  state.read([&](Infos infos, const ckpt::TensorReader& read) {
    out.state = ckpt::state_digest(replica.step(), replica.state().values(), infos, read);
  });
  const JobState::Deployed model = replica.deployed();
  PartStream weights(exchange, tensors_to_deploy(model, shares));
  weights.read([&](Infos infos, const ckpt::TensorReader& read) {
    out.weights = ckpt::tensors_digest(infos, read);
  });
  weights.read([&](Infos infos, const ckpt::TensorReader& read) {
    ckpt::write_safetensors(model_file, infos, replica.about_model(out.weights), read);
  });
  if (exchange.rank() != PartStream::kLeader) return std::nullopt;
  return out;
}

}  // namespace ductile::train
