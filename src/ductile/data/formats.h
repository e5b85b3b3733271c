#pragma once

#include <memory>

#include "ductile/data/dataset.h"

// One maker a format; open_dataset's table lists them.
namespace ductile::data {

using DatasetMaker = std::shared_ptr<const Dataset> (*)(const spec::DataOptions&, Split);

std::shared_ptr<const Dataset> open_digits(const spec::DataOptions& options, Split split);
std::shared_ptr<const Dataset> open_idx(const spec::DataOptions& options, Split split);
std::shared_ptr<const Dataset> open_cifar10(const spec::DataOptions& options, Split split);
std::shared_ptr<const Dataset> open_cifar100(const spec::DataOptions& options, Split split);
std::shared_ptr<const Dataset> open_folder(const spec::DataOptions& options, Split split);
std::shared_ptr<const Dataset> open_tar(const spec::DataOptions& options, Split split);
std::shared_ptr<const Dataset> open_records(const spec::DataOptions& options, Split split);
std::shared_ptr<const Dataset> open_tokens(const spec::DataOptions& options, Split split);

}  // namespace ductile::data
