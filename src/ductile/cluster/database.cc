#include "ductile/cluster/database.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/paths.h"

namespace ductile::cluster {
namespace {

constexpr int kPatience = 5000;  // milliseconds for another process's lock

// WAL shares memory between the processes that use a file, which network file systems cannot.
void refuse_network_file_system(const fs::path& file) {
  struct statfs where {};
  if (::statfs(file.parent_path().c_str(), &where) != 0) return;  // opening says why
  constexpr unsigned long kNetwork[] = {
      0x6969,      // NFS
      0xff534d42,  // CIFS
      0xfe534d42,  // SMB2
      0x517b,      // SMB
      0x0bd00bd0,  // Lustre
      0x19830326,  // BeeGFS
      0x47504653,  // GPFS
  };
  for (const unsigned long kind : kNetwork) {
    if (static_cast<unsigned long>(where.f_type) == kind)
      fail(ErrorCode::invalid_argument,
           "{}: lies on a network file system, where a store can be damaged; choose a folder on a "
           "local disk",
           file.string());
  }
}

// SQLite would say of a folder that it cannot be opened, and wait at a FIFO.
void refuse_what_is_no_file(const fs::path& file) {
  struct stat is {};
  if (::stat(file.c_str(), &is) != 0 || S_ISREG(is.st_mode)) return;  // opening says why
  fail(ErrorCode::invalid_argument,
       "{}: is {}, and a store is a file: move it away, and put the store or a backup there",
       file.string(), kind_text(file));
}

// SQLite gives the files beside it the same permissions. One that is there is not opened: to close
// it again would end the locks that other connections of this process have on it.
void make_private(const fs::path& file) {
  const int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0 && errno != EEXIST) fail_errno(file.string(), errno);
  if (fd >= 0) ::close(fd);
}

ErrorCode code_of(int code, int error_number) {
  switch (code & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return ErrorCode::data_loss;
    case SQLITE_CONSTRAINT:
      return ErrorCode::conflict;
    case SQLITE_CANTOPEN:
      return error_number == ENOENT ? ErrorCode::not_found : ErrorCode::unavailable;
    case SQLITE_FULL:
    case SQLITE_IOERR:
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_AUTH:
    case SQLITE_NOMEM:
    case SQLITE_INTERRUPT:
    case SQLITE_PROTOCOL:
      return ErrorCode::unavailable;
    case SQLITE_TOOBIG:
      return ErrorCode::invalid_argument;
    default:
      return ErrorCode::internal;
  }
}

StoreFault fault_of(int code, int error_number) {
  if (code == SQLITE_READONLY_DBMOVED) return StoreFault::failing;
  switch (code & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return StoreFault::damaged;
    case SQLITE_FULL:
      return StoreFault::full;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_PROTOCOL:
      return StoreFault::busy;
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_AUTH:
      return StoreFault::read_only;
    case SQLITE_IOERR:
    case SQLITE_CANTOPEN:
      break;
    default:
      return StoreFault::none;
  }
  // Only the system knows. A user without quota has no room either.
  if (error_number == ENOSPC || error_number == EDQUOT) return StoreFault::full;
  if (error_number == EROFS || error_number == EACCES || error_number == EPERM)
    return StoreFault::read_only;
  for (const int other : {ENOENT, EMFILE, ENFILE, ENOMEM})
    if (error_number == other) return StoreFault::none;
  return StoreFault::failing;
}

bool is_of_reading(int code) {
  const int kind = code & 0xff;
  return code == SQLITE_IOERR_READ || code == SQLITE_IOERR_SHORT_READ || kind == SQLITE_CORRUPT ||
         kind == SQLITE_NOTADB;
}

std::string_view remedy_of(StoreFault fault) {
  switch (fault) {
    case StoreFault::none:
    case StoreFault::missing:
      return "";
    case StoreFault::full:
      return "; free space on its disk";
    case StoreFault::busy:
      return "; another process writes to it: end what that one does";
    case StoreFault::read_only:
      return "; it may not be written: give its user the right (chmod, chown), or mount its disk "
             "for "
             "writing again";
    case StoreFault::failing:
      return "; its disk fails: the kernel's log (dmesg) says more";
    case StoreFault::damaged:
      return "; restore it from a copy, or move it away to begin a new one";
  }
  return "";
}

}  // namespace

std::string_view to_string(StoreFault fault) {
  constexpr std::string_view kNames[] = {"",        "full",    "busy",   "read only",
                                         "failing", "missing", "damaged"};
  return kNames[static_cast<size_t>(fault)];
}

bool Row::is_null(int column) const {
  return sqlite3_column_type(statement_, column) == SQLITE_NULL;
}
int64_t Row::integer(int column) const { return sqlite3_column_int64(statement_, column); }
double Row::real(int column) const { return sqlite3_column_double(statement_, column); }
std::string Row::text(int column) const {
  const auto* const bytes = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
  if (bytes == nullptr) return {};
  return {bytes, static_cast<size_t>(sqlite3_column_bytes(statement_, column))};
}

void Database::Close::operator()(sqlite3* connection) const { sqlite3_close_v2(connection); }
void Database::Finalize::operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }

Database::Database(const fs::path& file, Access access, const char* vfs)
    : file_(fs::absolute(file)) {
  refuse_network_file_system(file_);
  refuse_what_is_no_file(file_);
  int flags = SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_READWRITE;  // readers, too, share the WAL's index
  sqlite3* connection = nullptr;
  if (access == Access::write) make_private(file_);
  errno = 0;
  const int opened = sqlite3_open_v2(file_.c_str(), &connection, flags, vfs);
  connection_.reset(connection);
  if (opened != SQLITE_OK) fail_with(opened, "opening it");
  sqlite3_extended_result_codes(connection, 1);
  sqlite3_busy_timeout(connection, kPatience);
  sqlite3_db_config(connection, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  // A committed transaction is on the disk; and no file's own SQL is trusted.
  execute("PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; PRAGMA trusted_schema = OFF;");
  if (access == Access::read) execute("PRAGMA query_only = ON");
}

void Database::use_wal() {
  query("PRAGMA journal_mode = WAL", [&](const Row& row) {
    if (row.text(0) != "wal")
      fail(ErrorCode::unavailable,
           "{}: its file system does not let processes share memory, which readers beside a writer "
           "need; choose a folder on a local disk",
           file_.string());
  });
  execute("PRAGMA journal_size_limit = 67108864");
}

Database::~Database() { statements_.clear(); }

// To be called at once where SQLite has failed, before which errno was 0: of a commit that fails it
// does not keep the system's number (3.40), and its own may be that of an earlier failure.
void Database::fail_with(int code, std::string_view doing) const {
  const int last = errno;
  int error_number = 0;
  if ((code & 0xff) == SQLITE_IOERR || (code & 0xff) == SQLITE_CANTOPEN) {
    // Looking for files and locks fails without being the reason.
    const bool is_reason = last != 0 && last != ENOENT && last != EAGAIN;
    error_number = is_reason ? last : connection_ ? sqlite3_system_errno(connection_.get()) : 0;
  }
  std::string text = connection_ ? sqlite3_errmsg(connection_.get()) : sqlite3_errstr(code);
  if (error_number != 0) text += fmt::format(" ({})", std::strerror(error_number));
  const StoreFault fault = fault_of(code, error_number);
  throw StoreError(Error(code_of(code, error_number), fmt::format("{}: {}: {}{}", file_.string(),
                                                                  doing, text, remedy_of(fault))),
                   fault, {text, is_of_reading(code)});
}

void Database::execute(const std::string& sql) {
  errno = 0;
  const int code = sqlite3_exec(connection_.get(), sql.c_str(), nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) fail_with(code, "using it");
}

Database::Use::Use(Database& database, std::string_view sql) : database(database) {
  auto found = database.statements_.find(sql);
  if (found == database.statements_.end()) {
    sqlite3_stmt* made = nullptr;
    errno = 0;
    const int code =
        sqlite3_prepare_v3(database.connection_.get(), sql.data(), static_cast<int>(sql.size()),
                           SQLITE_PREPARE_PERSISTENT, &made, nullptr);
    if (code != SQLITE_OK) database.fail_with(code, "using it");
    found = database.statements_
                .emplace(std::string(sql), std::unique_ptr<sqlite3_stmt, Finalize>(made))
                .first;
  }
  statement = found->second.get();
  DUCTILE_CHECK(!sqlite3_stmt_busy(statement), "a statement is used inside its own rows: {}", sql);
}

Database::Use::~Use() {
  sqlite3_reset(statement);
  sqlite3_clear_bindings(statement);
}

void Database::bind(sqlite3_stmt* statement, int place, int64_t value) {
  sqlite3_bind_int64(statement, place, value);
}
void Database::bind(sqlite3_stmt* statement, int place, double value) {
  sqlite3_bind_double(statement, place, value);
}
void Database::bind(sqlite3_stmt* statement, int place, std::string_view value) {
  sqlite3_bind_text64(statement, place, value.data() == nullptr ? "" : value.data(), value.size(),
                      SQLITE_TRANSIENT, SQLITE_UTF8);
}
void Database::bind(sqlite3_stmt* statement, int place, std::nullptr_t) {
  sqlite3_bind_null(statement, place);
}

void Database::step_all(Use& use, const OnRow& on_row) {
  while (true) {
    errno = 0;
    const int code = sqlite3_step(use.statement);
    if (code == SQLITE_DONE) return;
    if (code != SQLITE_ROW)
      fail_with(code, sqlite3_stmt_readonly(use.statement) != 0 ? "reading it" : "writing to it");
    if (on_row) on_row(Row(use.statement));
  }
}

int64_t Database::last_insert() const { return sqlite3_last_insert_rowid(connection_.get()); }
int64_t Database::changed_rows() const { return sqlite3_changes64(connection_.get()); }
int64_t Database::all_changes() const { return sqlite3_total_changes64(connection_.get()); }
bool Database::in_transaction() const { return sqlite3_get_autocommit(connection_.get()) == 0; }

namespace {

void take_back(Database& database) {
  if (!database.in_transaction()) return;
  try {
    database.execute("ROLLBACK");
  } catch (const Error&) {
    // A transaction that cannot be taken back here is taken back when the file is opened again.
  }
}

}  // namespace

Transaction::Transaction(Database& database) : database_(database) {
  database_.execute("BEGIN IMMEDIATE");
}

Transaction::~Transaction() {
  if (open_) take_back(database_);
}

void Transaction::commit() {
  database_.execute("COMMIT");
  open_ = false;
}

ReadTransaction::ReadTransaction(Database& database) : database_(database) {
  database_.execute("BEGIN");
}

ReadTransaction::~ReadTransaction() { take_back(database_); }

}  // namespace ductile::cluster
