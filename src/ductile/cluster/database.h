#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/base/files.h"

struct sqlite3;
struct sqlite3_stmt;

namespace ductile::cluster {

// Why a store's file refuses. Each has a remedy of its own, and not all of them pass by themselves.
enum class StoreFault : uint8_t {
  none,       // it does not: what was asked of it was wrong
  full,       // no room on its disk, or in its user's quota: until there is some
  busy,       // another process has its lock: until that one lets it go
  read_only,  // it may not be written: until somebody allows it
  failing,    // its disk does not read or write
  missing,    // it was removed or replaced: until it is back
  damaged,    // it is not whole: for good
};
std::string_view to_string(StoreFault fault);  // "read only"; none: empty

// What SQLite and the system say of it, without the name of a file: of several they do not say
// which one it is.
struct StoreCause {
  std::string text;
  bool in_reading = false;  // also where what was read is damaged
};

// An error that knows which of these it is.
class StoreError : public Error {
 public:
  StoreError(Error error, StoreFault fault, StoreCause cause = {})
      : Error(std::move(error)), fault_(fault), cause_(std::move(cause)) {}
  StoreFault fault() const { return fault_; }
  const StoreCause& cause() const { return cause_; }

 private:
  StoreFault fault_;
  StoreCause cause_;
};

// One result row, which lives during the call that hands it out. Columns count from 0.
class Row {
 public:
  explicit Row(sqlite3_stmt* statement) : statement_(statement) {}
  bool is_null(int column) const;
  int64_t integer(int column) const;
  double real(int column) const;
  std::string text(int column) const;

 private:
  sqlite3_stmt* statement_;
};

// A connection to an SQLite file: a transaction that was committed survives the end of the process
// and of the power.
//
// Errors are kept apart by their remedy: data_loss (the file is damaged, or is none of SQLite),
// unavailable (full disk, permission, a read that failed, a lock that another process holds),
// conflict (a constraint), not_found. All name the file and are StoreErrors. One thread at a time
// uses a connection.
class Database {
 public:
  enum class Access : uint8_t { read, write };

  // `write` makes the file, for this user alone, if there is none. `vfs`: of SQLite; for tests.
  Database(const fs::path& file, Access access, const char* vfs = nullptr);
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;
  ~Database();

  const fs::path& file() const { return file_; }

  // Keeps the file in WAL mode from now on: readers never wait for the writer, nor it for them.
  void use_wal();

  // Statements without parameters and results, separated by semicolons.
  void execute(const std::string& sql);

  // A statement whose parameters are "?", for each in turn an argument: integers, doubles, texts,
  // optional ones, nullptr. on_row is called for each row of the result.
  using OnRow = std::function<void(const Row&)>;
  template <class... Args>
  void query(std::string_view sql, const OnRow& on_row, const Args&... args) {
    Use use(*this, sql);
    int place = 0;
    (bind(use.statement, ++place, args), ...);
    step_all(use, on_row);
  }
  template <class... Args>
  void run(std::string_view sql, const Args&... args) {
    query(sql, nullptr, args...);
  }
  // The first column of the first row; `otherwise` if there is no row, or it is null.
  template <class... Args>
  int64_t integer(std::string_view sql, int64_t otherwise, const Args&... args) {
    query(
        sql, [&](const Row& row) { otherwise = row.is_null(0) ? otherwise : row.integer(0); },
        args...);
    return otherwise;
  }

  int64_t last_insert() const;   // the key that the last INSERT made
  int64_t changed_rows() const;  // by the last INSERT, UPDATE or DELETE
  int64_t all_changes() const;   // the sum of that since it was opened
  // False after SQLite has taken a transaction back by itself, as it does on a full disk.
  bool in_transaction() const;

 private:
  // A prepared statement while it is in use. It is kept for the next time.
  struct Use {
    Use(Database& database, std::string_view sql);
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    ~Use();
    Database& database;
    sqlite3_stmt* statement;
  };
  struct Close {
    void operator()(sqlite3* connection) const;
  };
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const;
  };

  static void bind(sqlite3_stmt* statement, int place, int64_t value);
  static void bind(sqlite3_stmt* statement, int place, int value) {
    bind(statement, place, int64_t{value});
  }
  static void bind(sqlite3_stmt* statement, int place, double value);
  static void bind(sqlite3_stmt* statement, int place, std::string_view value);
  static void bind(sqlite3_stmt* statement, int place, const std::string& value) {
    bind(statement, place, std::string_view(value));
  }
  static void bind(sqlite3_stmt* statement, int place, const char* value) {
    bind(statement, place, std::string_view(value));
  }
  static void bind(sqlite3_stmt* statement, int place, std::nullptr_t);
  template <class T>
  static void bind(sqlite3_stmt* statement, int place, const std::optional<T>& value) {
    if (value) return bind(statement, place, *value);
    bind(statement, place, nullptr);
  }
  void step_all(Use& use, const OnRow& on_row);
  [[noreturn]] void fail_with(int code, std::string_view doing) const;

  fs::path file_;
  std::unique_ptr<sqlite3, Close> connection_;
  std::map<std::string, std::unique_ptr<sqlite3_stmt, Finalize>, std::less<>> statements_;
};

// Everything between its construction and commit() happens, or nothing of it.
class Transaction {
 public:
  explicit Transaction(Database& database);
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  ~Transaction();
  void commit();

 private:
  Database& database_;
  bool open_ = true;
};

// What is read while it lives is of one moment; without it, each statement reads what is newest by
// then. The log of the file cannot be cut meanwhile, so it must not wait for anybody.
class ReadTransaction {
 public:
  explicit ReadTransaction(Database& database);
  ReadTransaction(const ReadTransaction&) = delete;
  ReadTransaction& operator=(const ReadTransaction&) = delete;
  ~ReadTransaction();

 private:
  Database& database_;
};

}  // namespace ductile::cluster
