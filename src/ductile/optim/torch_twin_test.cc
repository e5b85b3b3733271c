#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ductile/base/files.h"
#include "ductile/base/json_value.h"
#include "ductile/optim/optimizer.h"

// Our steps beside those of torch.optim, recorded (testdata/optimizers.json) and live.
namespace ductile::optim {
namespace {

constexpr const char* kFolder = DUCTILE_SOURCE_DIR "/src/ductile/optim/testdata/";

// The integer hash of torch_oracle.py.
float hashed(uint64_t i, uint64_t step, uint64_t seed, float amplitude) {
  uint64_t h = (i * 2654435761U + step * 40503 + seed * 69069 + 12345) & 0xffffffffU;
  h ^= h >> 15;
  h = (h * 40503 * 65521) & 0xffffffffU;
  h ^= h >> 13;
  return (static_cast<float>(h >> 8) - 8388608.0F) / 8388608.0F * amplitude;
}

spec::OptimizerOptions optimizer_from_json(const nlohmann::json& json) {
  spec::OptimizerOptions o;
  o.name = json.at("name");
  o.lr = json.at("lr");
  o.weight_decay = json.at("weight_decay");
  o.momentum = json.value("momentum", o.momentum);
  o.sgd.nesterov = json.value("nesterov", o.sgd.nesterov);
  o.adam.beta1 = json.value("beta1", o.adam.beta1);
  o.adam.beta2 = json.value("beta2", o.adam.beta2);
  o.adam.eps = json.value("eps", o.adam.eps);
  o.nadamw.momentum_decay = json.value("momentum_decay", o.nadamw.momentum_decay);
  return o;
}

class Run {
 public:
  Run(const nlohmann::json& tensors, uint64_t seed) : seed_(seed) {
    for (const auto& tensor : tensors) {
      const std::string name = tensor.at(0);
      layout.add(name, {tensor.at(1).get<int64_t>()}, name.starts_with("norm"));
      EXPECT_EQ(layout.segment(name).decay, tensor.at(2).get<bool>()) << name;
    }
    weights.resize(static_cast<size_t>(layout.total_size()));
    gradient.resize(weights.size());
    fill(weights, 0, 0.25F);
  }

  void fill(std::vector<float>& values, uint64_t step, float amplitude) const {
    uint64_t index = 0;
    for (const Segment& s : layout.segments()) {
      for (int64_t i = 0; i < s.size; ++i) {
        values[static_cast<size_t>(s.offset + i)] = hashed(index++, step, seed_, amplitude);
      }
    }
  }

  // Each tensor within `bound` of its norm, each element within `bound` of itself or of the
  // tensor's root mean square where it is smaller than that.
  void expect_near(const std::vector<float>& expected, double bound,
                   const std::string& what) const {
    size_t index = 0;
    for (const Segment& s : layout.segments()) {
      double squares = 0, error = 0;
      for (int64_t i = 0; i < s.size; ++i) {
        squares += std::pow(expected[index + static_cast<size_t>(i)], 2);
      }
      const double rms = std::sqrt(squares / static_cast<double>(s.size));
      for (int64_t i = 0; i < s.size; ++i, ++index) {
        const double difference =
            std::fabs(weights[static_cast<size_t>(s.offset + i)] - double{expected[index]});
        error += difference * difference;
        ASSERT_LE(difference, bound * std::max(rms, std::fabs(double{expected[index]})))
            << what << " " << s.name << "[" << i << "]";
      }
      ASSERT_LE(std::sqrt(error), bound * std::sqrt(squares)) << what << " " << s.name;
    }
    ASSERT_EQ(index, expected.size());
  }

  ParamLayout layout;
  std::vector<float> weights, gradient;

 private:
  uint64_t seed_;
};

void expect_equals_torch(const nlohmann::json& recorded) {
  for (const auto& item : recorded.at("cases")) {
    const spec::OptimizerOptions options = optimizer_from_json(item);
    Run run(recorded.at("tensors"), recorded.at("seed"));
    const auto optimizer = make_optimizer(options, run.layout);
    for (int step = 1; step <= 100; ++step) {
      run.fill(run.gradient, static_cast<uint64_t>(step), 0.125F);
      Hyper hyper = Hyper::of(options);
      hyper.lr = options.lr * (1 - step / 200.0);
      optimizer->step({.weights = run.weights, .gradient = run.gradient, .hyper = hyper});
      const auto& weights = item.at("weights");
      if (const auto found = weights.find(std::to_string(step)); found != weights.end()) {
        nlohmann::json head = item;
        head.erase("weights");
        // torch's NAdam moves the weights twice per step, and rounds each time.
        run.expect_near(found->get<std::vector<float>>(), options.name == "nadamw" ? 3e-6 : 1e-6,
                        head.dump() + " step " + std::to_string(step));
      }
    }
  }
}

TEST(TorchTwin, RecordedStepsOfTorchAreOurs) {
  expect_equals_torch(nlohmann::json::parse(read_file(std::string(kFolder) + "optimizers.json")));
}

TEST(TorchTwin, StepsOfTorchRunNowAreOurs) {
  if (std::system("/usr/bin/python3 -c 'import torch' >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "/usr/bin/python3 has no torch (Debian: python3-torch)";
  }
  const std::string command = std::string("/usr/bin/python3 -W ignore ") + kFolder +
                              "torch_oracle.py optimizers --seed 2 --scale 100";
  FILE* pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string text;
  char part[65536];
  while (const size_t n = fread(part, 1, sizeof part, pipe)) text.append(part, n);
  ASSERT_EQ(pclose(pipe), 0) << command;
  expect_equals_torch(nlohmann::json::parse(text));
}

}  // namespace
}  // namespace ductile::optim
