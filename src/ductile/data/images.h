#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ductile/base/files.h"
#include "ductile/data/dataset.h"

namespace ductile::data {

// Whether the path is an image file, or a folder that has anything but folders under names of image
// files, beside folders or not.
bool holds_images(const fs::path& path);

// Images without classes, to be predicted: one file, or all of a folder in the order of their
// names. Every label is 0. With one channel (of 1 or 3) they are grey. What has such a name in a
// folder and is no file (a link that leads nowhere, a FIFO) is a bad sample. Throws not_found or
// invalid_argument if there are none.
std::shared_ptr<const Dataset> open_images(const fs::path& path, bool skip_bad,
                                           int64_t channels = 3);

// An image as a model of 1 or 3 channels reads it: with one, it is the brightness of the image's
// pixels, which `scratch` then holds; a grey image stands for three equal channels. `sample` is
// pixels or a whole file. Throws data_loss.
Sample with_channels(const Sample& sample, int64_t channels, std::vector<std::byte>& scratch);

// The same samples with the classes of another set, by their names as UTF-8: a set that has fewer
// classes, or numbers them in another way, gets the numbers of `class_names`. Returns the set
// itself if the names are the same. Throws invalid_argument, naming a class that is not among them.
std::shared_ptr<const Dataset> with_classes(std::shared_ptr<const Dataset> dataset,
                                            const std::vector<std::string>& class_names);

}  // namespace ductile::data
