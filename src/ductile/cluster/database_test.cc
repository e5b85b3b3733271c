#include "ductile/cluster/database.h"

#include <fstream>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "ductile/base/testing.h"
#include "ductile/cluster/schema.h"

namespace ductile::cluster {
namespace {

using ductile::testing::text_of;

class DatabaseFile : public ::testing::Test {
 protected:
  TempFolder folder;
  const fs::path file = folder.path() / "store.db";
};

TEST_F(DatabaseFile, GivesBackWhatWasBound) {
  Database database(file, Database::Access::write);
  database.execute("CREATE TABLE t (i INTEGER, r REAL, s TEXT, n TEXT) STRICT");
  const std::string bytes("a\0b\xf0\x9f\x99\x82", 7);
  database.run("INSERT INTO t VALUES (?, ?, ?, ?)", INT64_MIN, 0.1, bytes,
               std::optional<std::string>());
  int rows = 0;
  database.query("SELECT i, r, s, n FROM t", [&](const Row& row) {
    ++rows;
    EXPECT_EQ(row.integer(0), INT64_MIN);
    EXPECT_EQ(row.real(1), 0.1);
    EXPECT_EQ(row.text(2), bytes);
    EXPECT_TRUE(row.is_null(3));
  });
  EXPECT_EQ(rows, 1);
}

TEST_F(DatabaseFile, BelongsToItsUserAlone) {
  Database database(file, Database::Access::write);
  database.execute("CREATE TABLE t (i INTEGER)");
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    struct stat is {};
    ASSERT_EQ(stat(entry.path().c_str(), &is), 0);
    EXPECT_EQ(is.st_mode & 0777, 0600u) << entry.path();
  }
}

TEST_F(DatabaseFile, TellsItsErrorsApart) {
  const auto open = [&](Database::Access access) { Database(file, access).execute("SELECT 1"); };
  EXPECT_NE(
      text_of([&] { open(Database::Access::read); }, ErrorCode::not_found).find(file.string()),
      std::string::npos);
  { Database(file, Database::Access::write).execute("CREATE TABLE t (i INTEGER UNIQUE)"); }
  {
    Database database(file, Database::Access::write);
    database.execute("INSERT INTO t VALUES (1)");
    text_of([&] { database.execute("INSERT INTO t VALUES (1)"); }, ErrorCode::conflict);
    Database reader(file, Database::Access::read);
    text_of([&] { reader.execute("INSERT INTO t VALUES (2)"); }, ErrorCode::unavailable);
  }
  std::ofstream(file, std::ios::trunc) << std::string(4096, 'x');
  EXPECT_NE(
      text_of([&] { open(Database::Access::write); }, ErrorCode::data_loss).find("restore it"),
      std::string::npos);
}

TEST_F(DatabaseFile, AWriterThatAnotherOneKeepsWaitingSaysSo) {
  Database one(file, Database::Access::write), other(file, Database::Access::write);
  other.execute("PRAGMA busy_timeout = 1");
  const Transaction first(one);
  EXPECT_NE(text_of([&] { const Transaction second(other); }, ErrorCode::unavailable)
                .find("another process"),
            std::string::npos);
}

TEST_F(DatabaseFile, ATransactionThatIsNotCommittedNeverHappened) {
  Database database(file, Database::Access::write);
  database.execute("CREATE TABLE t (i INTEGER)");
  {
    const Transaction transaction(database);
    database.execute("INSERT INTO t VALUES (1)");
  }
  EXPECT_EQ(database.integer("SELECT count(*) FROM t", -1), 0);
}

TEST_F(DatabaseFile, IsMigratedOnceAndThenLeftAlone) {
  Database database(file, Database::Access::write);
  text_of([&] { require_newest_schema(database); }, ErrorCode::data_loss);
  migrate(database);
  const int64_t version = database.integer("PRAGMA schema_version", 0);
  migrate(database);
  EXPECT_EQ(database.integer("PRAGMA schema_version", 0), version);
  EXPECT_EQ(database.integer("PRAGMA user_version", 0), newest_schema());
  require_newest_schema(database);
}

TEST_F(DatabaseFile, OfANewerDuctileIsNotTouched) {
  Database database(file, Database::Access::write);
  migrate(database);
  database.execute(fmt::format("PRAGMA user_version = {}", newest_schema() + 1));
  for (const auto& touch : {migrate, require_newest_schema}) {
    EXPECT_NE(text_of([&] { touch(database); }, ErrorCode::conflict).find("newer"),
              std::string::npos);
  }
}

TEST_F(DatabaseFile, OfAnotherProgramIsNotTouched) {
  Database database(file, Database::Access::write);
  database.execute("CREATE TABLE bookmarks (url TEXT)");
  text_of([&] { migrate(database); }, ErrorCode::data_loss);
  EXPECT_EQ(database.integer("SELECT count(*) FROM sqlite_schema", 0), 1);
}

}  // namespace
}  // namespace ductile::cluster
