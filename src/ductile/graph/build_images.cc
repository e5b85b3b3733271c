// Convolutional models: He et al. 2015 (arXiv 1512.03385), Ronneberger et al. 2015 (arXiv
// 1505.04597, with padded convolutions).
#include "ductile/graph/builders_impl.h"

namespace ductile::graph::build {
namespace {

struct Image {
  OpId op = -1;  // -1: the input of the model
  int64_t channels = 0, side = 0;
};

// Convolution, batch normalisation and ReLU in one operator.
Image convolve(Maker& maker, const std::string& name, const Image& in, int64_t channels,
               int64_t kernel, int64_t stride) {
  const int64_t side = std::max<int64_t>(1, in.side / stride);
  const double weights = double(in.channels * channels * kernel * kernel);
  const double pixels = double(side * side), outputs = pixels * double(channels);
  const double inputs = double(in.side * in.side * in.channels);
  Work w;
  w.flops = 2 * pixels * weights + 6 * outputs;
  w.bytes = kFloat * (inputs + 4 * outputs);
  w.parameter_bytes = kFloat * (weights + 2 * double(channels));
  w.weight_flops = 2 * pixels * weights;
  w.activation_bytes = kFloat * (inputs + outputs);  // what is convolved, what is normalised
  const std::vector<OpId> from = in.op < 0 ? std::vector<OpId>{} : std::vector{in.op};
  return {maker.add({name, "conv_bn_relu", {channels, side, side}, w}, from), channels, side};
}

Image without_weights(Maker& maker, const std::string& name, const char* kind,
                      const std::vector<Image>& from, int64_t channels, int64_t side) {
  double inputs = 0;
  std::vector<OpId> ops;
  for (const Image& i : from) {
    inputs += double(i.channels * i.side * i.side);
    ops.push_back(i.op);
  }
  const double outputs = double(channels * side * side);
  Work w;
  w.flops = inputs;
  w.bytes = kFloat * (inputs + outputs);
  w.activation_bytes = outputs / 8;  // a bit a value
  return {maker.add({name, kind, {channels, side, side}, w}, ops), channels, side};
}

}  // namespace

Graph resnet(std::span<const int64_t> v, const DeviceModel& device) {
  const int64_t depth = v[0], side = v[1], classes = v[2];
  std::vector<int> blocks;
  switch (depth) {
    case 18:
      blocks = {2, 2, 2, 2};
      break;
    case 34:
    case 50:
      blocks = {3, 4, 6, 3};
      break;
    case 101:
      blocks = {3, 4, 23, 3};
      break;
    case 152:
      blocks = {3, 8, 36, 3};
      break;
    default:
      fail(ErrorCode::invalid_argument, "resnet: depth is {}, known are 18, 34, 50, 101 and 152",
           depth);
  }
  const bool bottleneck = depth >= 50;
  const int64_t widen = bottleneck ? 4 : 1;
  Maker maker("resnet", device);
  Image at = convolve(maker, "stem", {-1, 3, side}, 64, 7, 2);
  at = without_weights(maker, "pool", "max_pool", {at}, 64, std::max<int64_t>(1, at.side / 2));
  for (int level = 0; level < 4; ++level) {
    const int64_t width = int64_t{64} << level;
    for (int block = 0; block < blocks[level]; ++block) {
      const std::string name = fmt::format("level{}.block{}", level, block);
      const int64_t stride = level > 0 && block == 0 ? 2 : 1;
      const Image skip =
          block > 0 ? at : convolve(maker, name + ".skip", at, widen * width, 1, stride);
      Image x = at;
      if (bottleneck) x = convolve(maker, name + ".conv0", x, width, 1, 1);
      x = convolve(maker, name + ".conv1", x, width, 3, stride);
      x = convolve(maker, name + ".conv2", x, widen * width, bottleneck ? 1 : 3, 1);
      at = without_weights(maker, name + ".add", "add", {x, skip}, x.channels, x.side);
    }
  }
  at = without_weights(maker, "average", "average_pool", {at}, at.channels, 1);
  maker.linear("head", at.channels, classes, {at.op});
  return maker.finish();
}

Graph unet(std::span<const int64_t> v, const DeviceModel& device) {
  const int64_t depth = v[0], width = v[1], side = v[2];
  Maker maker("unet", device);
  const auto twice = [&](const std::string& name, const Image& in, int64_t channels) {
    return convolve(maker, name + ".conv1", convolve(maker, name + ".conv0", in, channels, 3, 1),
                    channels, 3, 1);
  };
  Image at{-1, 3, side};
  std::vector<Image> skips;
  for (int64_t d = 0; d < depth; ++d) {
    const std::string name = fmt::format("down{}", d);
    skips.push_back(twice(name, at, width << d));
    at = without_weights(maker, name + ".pool", "max_pool", {skips.back()}, skips.back().channels,
                         std::max<int64_t>(1, skips.back().side / 2));
  }
  at = twice("middle", at, width << depth);
  for (int64_t d = depth - 1; d >= 0; --d) {
    const std::string name = fmt::format("up{}", d);
    const Image& skip = skips[d];
    const Image wide =
        without_weights(maker, name + ".resize", "resize", {at}, at.channels, skip.side);
    const Image both = without_weights(maker, name + ".concat", "concat", {wide, skip},
                                       wide.channels + skip.channels, skip.side);
    at = twice(name, both, width << d);
  }
  convolve(maker, "head", at, 2, 1, 1);
  return maker.finish();
}

}  // namespace ductile::graph::build
