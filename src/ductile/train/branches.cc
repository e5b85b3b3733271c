#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"
#include "ductile/train/state.h"

namespace ductile::train {

using Json = nlohmann::json;

// What another branch has, too, is shared with it. Most often that is an earlier image of this
// branch, or the first one, so that little is copied.
void JobState::save_branch(const std::string& name, const std::string& apart) {
  DUCTILE_CHECK(optimizer->holds_all(), "a branch is a whole state");
  const auto earlier = branches_.contains(name) ? branches_.find(name) : branches_.begin();
  StateImage image = fork(earlier == branches_.end() ? nullptr : &earlier->second);
  image.branches_.clear();
  image.values_.at("extra").erase(apart);
  std::erase_if(image.arrays_,
                [&](const auto& array) { return array.first.starts_with("extra/" + apart + "/"); });
  branches_[name] = std::move(image);
  share_branches();
}

// Makes one of the pieces that are equal: of one array in several branches, or of an array and the
// weights. They are so already unless a branch is new, or all have come from elsewhere.
void JobState::share_branches() {
  std::vector<const StateImage*> before;
  for (auto& [name, image] : branches_) {
    StateImage& own = image;
    const auto share = [&](const std::string& array, std::vector<StateImage::Piece>& pieces) {
      for (size_t i = 0; i < pieces.size(); ++i) {
        StateImage::Piece equal;
        for (const StateImage* other : before)
          if (equal == nullptr) equal = other->find(array, i, *pieces[i]);
        if (equal == nullptr) equal = own.find(StateImage::kWeights, i, *pieces[i]);
        if (equal != nullptr) pieces[i] = std::move(equal);
      }
    };
    const auto weights = own.arrays_.find(StateImage::kWeights);
    if (weights != own.arrays_.end()) share(weights->first, weights->second);  // before the others
    for (auto& [array, pieces] : own.arrays_) share(array, pieces);
    before.push_back(&own);
  }
}

void JobState::take_branch(const std::string& name, const std::string& apart) {
  const auto found = branches_.find(name);
  DUCTILE_CHECK(found != branches_.end(), "there is no branch {}", name);
  StateImage image = found->second;
  image.branches_ = std::move(branches_);
  auto kept = extras_.extract(apart);
  const Counters whole = counters;
  take(image);
  if (!kept.empty()) extras_.insert(std::move(kept));
  counters.step = whole.step;
  counters.samples_forward = whole.samples_forward;
  counters.samples_backward = whole.samples_backward;
  counters.flops = whole.flops;
  window = {};
}

Json JobState::branch_values() const {
  Json out;
  for (const auto& [name, image] : branches_) {
    Json sizes = Json::object();
    for (const auto& [array, pieces] : image.arrays_) {
      Json& of = sizes[array] = Json::array();
      for (const StateImage::Piece& piece : pieces) of.push_back(piece->size());
    }
    out[name] = {{"values", image.values_}, {"arrays", std::move(sizes)}};
  }
  return out;
}

// The branches that `values` name, of zeros.
void JobState::make_branches(const Json& values) {
  branches_.clear();
  const auto saved = values.find("branches");
  if (saved == values.end()) return;
  for (const auto& [name, branch] : saved->items()) {
    StateImage& image = branches_[name];
    image.values_ = branch.at("values");
    image.held_ = {{0, optimizer->num_blocks()}};
    for (const auto& [array, sizes] : branch.at("arrays").items()) {
      auto& pieces = image.arrays_[array];
      for (const Json& size : sizes)
        pieces.push_back(std::make_shared<std::vector<float>>(size.get<size_t>()));
    }
  }
}

}  // namespace ductile::train
