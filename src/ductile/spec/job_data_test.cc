#include <string>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/spec/job.h"

namespace ductile::spec {
namespace {

std::string what_is_missing(const JobOptions& job) {
  try {
    require_data(job);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_found);
    return error.message();
  }
  return "";
}

TEST(JobData, WhatIsNotThereIsNamedWithItsOption) {
  const TempFolder folder;
  write_file_atomic(folder.path() / "train.bin", "data");
  JobOptions job;
  EXPECT_EQ(what_is_missing(job), "") << "it names none";
  job.data.path = (folder.path() / "train.bin").string();
  EXPECT_EQ(what_is_missing(job), "");
  job.data.test_path = (folder.path() / "test.bin").string();
  EXPECT_EQ(what_is_missing(job),
            "data.test_path = \"" + job.data.test_path + "\": there is no such file or folder");
  try {
    require_data(job, "put them back");
    ADD_FAILURE() << "it is not there";
  } catch (const Error& error) {
    EXPECT_TRUE(error.message().ends_with("no such file or folder; put them back"))
        << error.message();
  }
  fs::create_symlink("nowhere", folder.path() / "test.bin");
  EXPECT_NE(what_is_missing(job).find("a link that leads nowhere"), std::string::npos);
  job.data.test_path = (folder.path() / "test-{000..007}.tar").string();
  job.data.format = "tar";
  EXPECT_EQ(what_is_missing(job), "") << "a pattern is of many files";
  job.data.format = "cifar10";
  EXPECT_NE(what_is_missing(job), "") << "a brace is one like any other letter";
  job.data.path = "nowhere";
  job.python.object = "train.py:Job";
  EXPECT_EQ(what_is_missing(job), "") << "they are a Python job's own matter";
}

}  // namespace
}  // namespace ductile::spec
