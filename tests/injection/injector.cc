// Preloaded into every process of a job: counts its calls to the system by kind, and lets those
// fail that the board names (board.h). Uses nothing but the C library. What the C library calls
// inside itself is not seen.
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include "board.h"

using namespace ductile::injection;

namespace {

Board* board = nullptr;
Role role = kNobody;
size_t root_size = 0;
uintptr_t program_begin = 0, program_end = 0;  // the text and data of the program itself

// ---- Who this is.

const char* argument_after(int argc, char** argv, const char* name) {
  for (int i = 1; i + 1 < argc; ++i)
    if (std::strcmp(argv[i], name) == 0) return argv[i + 1];
  return nullptr;
}

bool has_word(int argc, char** argv, const char* word) {
  for (int i = 1; i < argc; ++i)
    if (std::strcmp(argv[i], word) == 0) return true;
  return false;
}

Role role_of(int argc, char** argv) {
  const char* slash = std::strrchr(argv[0], '/');
  const char* name = slash != nullptr ? slash + 1 : argv[0];
  if (std::strcmp(name, "ductile") == 0) {
    if (has_word(argc, argv, "train")) return kController;
    if (!has_word(argc, argv, "host-agent")) return kNobody;
    const uint32_t before = board->agents++;
    return before == 0 ? kAgent1 : before == 1 ? kAgent2 : kNobody;
  }
  if (std::strstr(name, "worker") == nullptr || !has_word(argc, argv, "--run")) return kNobody;
  const char* worker = argument_after(argc, argv, "--worker");
  if (worker == nullptr) return kWorker0;
  const int number = std::atoi(worker);
  return number >= 1 && number <= 3 ? static_cast<Role>(kWorker1 + number - 1) : kLaterWorker;
}

int note_program(dl_phdr_info* info, size_t, void*) {
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& part = info->dlpi_phdr[i];
    if (part.p_type != PT_LOAD) continue;
    const uintptr_t begin = info->dlpi_addr + part.p_vaddr, end = begin + part.p_memsz;
    if (program_begin == 0 || begin < program_begin) program_begin = begin;
    if (end > program_end) program_end = end;
  }
  return 1;  // the first object is the program
}

__attribute__((constructor)) void begin(int argc, char** argv, char**) {
  const char* path = std::getenv(kBoardVariable);
  if (path == nullptr || argc < 1) return;
  const long fd = ::syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
  if (fd < 0) return;
  const long mapped =
      ::syscall(SYS_mmap, nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0L);
  ::syscall(SYS_close, fd);
  if (mapped == -1) return;
  ::dl_iterate_phdr(note_program, nullptr);
  board = reinterpret_cast<Board*>(mapped);
  root_size = std::strlen(board->root);
  role = role_of(argc, argv);
}

// ---- What a call is about.

// Below the test's folder; and where a controller looks for its workers.
bool in_root(const char* path) {
  if (std::strncmp(path, "/proc", 5) == 0) {
    const char* end = std::strrchr(path, '/');
    return path[5] == '\0' || std::strcmp(end, "/cmdline") == 0;
  }
  return std::strncmp(path, board->root, root_size) == 0 &&
         (path[root_size] == '/' || path[root_size] == '\0');
}

// The path behind a descriptor.
bool path_of(int fd, char* text, size_t size) {
  char link[64];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const long n = ::syscall(SYS_readlinkat, AT_FDCWD, link, text, size - 1);
  if (n < 0) return false;
  text[n] = '\0';
  return true;
}

struct Subject {
  bool counts = false;
  char text[300] = "";
};

Subject about(int folder, const char* path) {
  Subject subject;
  if (board == nullptr || role == kNobody || path == nullptr) return subject;
  if (path[0] == '/' || folder == AT_FDCWD) {
    std::snprintf(subject.text, sizeof subject.text, "%s", path);
    subject.counts = in_root(path);
  } else if (path_of(folder, subject.text, sizeof subject.text)) {
    subject.counts = in_root(subject.text);
  }
  return subject;
}

// A descriptor's kind decides as what its reads and writes count.
struct Stream {
  Subject subject;
  Call read = kRead, write = kWrite;
};

Stream stream_of(int fd) {
  Stream stream;
  if (board == nullptr || role == kNobody || fd < 0) return stream;
  struct stat info;
  if (::syscall(SYS_newfstatat, fd, "", &info, AT_EMPTY_PATH) != 0) return stream;
  stream.subject.counts = true;
  if (S_ISSOCK(info.st_mode)) {
    stream.read = kReceive;
    stream.write = kSend;
    std::snprintf(stream.subject.text, sizeof stream.subject.text, "socket %d", fd);
  } else if (S_ISFIFO(info.st_mode)) {
    stream.read = kPipeRead;
    stream.write = kPipeWrite;
    std::snprintf(stream.subject.text, sizeof stream.subject.text, "pipe %d", fd);
  } else if (S_ISREG(info.st_mode) || S_ISDIR(info.st_mode)) {
    stream.subject.counts = path_of(fd, stream.subject.text, sizeof stream.subject.text) &&
                            in_root(stream.subject.text);
  } else {
    stream.subject.counts = false;
  }
  return stream;
}

Subject of_process(const char* text) {
  Subject subject;
  subject.counts = board != nullptr && role != kNobody;
  std::snprintf(subject.text, sizeof subject.text, "%s", text);
  return subject;
}

// ---- Counting and striking.

void note(Call call, const Subject& subject) {
  if (board->struck++ != 0) return;
  std::snprintf(board->what, sizeof board->what, "%s %s %s", kRoleNames[role], kCallNames[call],
                subject.text);
}

// How this call is to end: 0 as it would by itself, else with an errno or kShort.
int strike(Call call, const Subject& subject) {
  if (!subject.counts) return 0;
  const bool worker = role >= kWorker1 && role <= kLaterWorker;
  int error = 0;
  const auto count = [&](Role counted) {
    const uint64_t n = ++board->counts[counted][call];
    if (counted == board->role && call == board->call && board->first != 0 && n >= board->first &&
        n - board->first < board->times)
      error = board->error;
  };
  count(role);
  if (worker) count(kWorkers);
  count(kEverybody);
  if (error != 0) note(call, subject);
  return error;
}

// For calls that transfer nothing.
bool fails(Call call, const Subject& subject) {
  const int error = strike(call, subject);
  if (error <= 0) return false;
  errno = error;
  return true;
}

// For those that do: false where it fails; `size` is what may be transferred.
bool allowed(Call call, const Subject& subject, size_t& size) {
  const int error = strike(call, subject);
  if (error == kShort && size > 1) size /= 2;
  if (error <= 0) return true;
  errno = error;
  return false;
}

template <class F>
F* real(F*, const char* name) {
  return reinterpret_cast<F*>(::dlsym(RTLD_NEXT, name));
}

long opened(int folder, const char* path, int flags, mode_t mode) {
  if (fails((flags & O_CREAT) != 0 ? kCreate : kOpen, about(folder, path))) return -1;
  return ::syscall(SYS_openat, folder, path, flags, mode);
}

// The first part of a transfer in pieces.
template <class Whole>
long in_pieces(Call call, const Subject& subject, const iovec* parts, const Whole& whole,
               long (*part)(int, void*, size_t), int fd) {
  const int error = strike(call, subject);
  if (error > 0) {
    errno = error;
    return -1;
  }
  if (error == kShort && parts != nullptr && parts[0].iov_len > 1)
    return part(fd, parts[0].iov_base, parts[0].iov_len / 2);
  return whole();
}

long read_part(int fd, void* to, size_t size) { return ::syscall(SYS_read, fd, to, size); }
long write_part(int fd, void* from, size_t size) { return ::syscall(SYS_write, fd, from, size); }
long send_part(int fd, void* from, size_t size) {
  return ::syscall(SYS_sendto, fd, from, size, MSG_NOSIGNAL, nullptr, 0);
}

}  // namespace

extern "C" {

// ---- Files.

int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  return static_cast<int>(opened(AT_FDCWD, path, flags, mode));
}
int open64(const char* path, int flags, ...) __attribute__((alias("open")));
int openat(int folder, const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  return static_cast<int>(opened(folder, path, flags, mode));
}
int openat64(int folder, const char* path, int flags, ...) __attribute__((alias("openat")));
int creat(const char* path, mode_t mode) {
  return static_cast<int>(opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode));
}
int creat64(const char* path, mode_t mode) __attribute__((alias("creat")));
FILE* fopen(const char* path, const char* mode) {
  if (fails(mode[0] == 'r' ? kOpen : kCreate, about(AT_FDCWD, path))) return nullptr;
  static auto* const next = real(&fopen, "fopen");
  return next(path, mode);
}
FILE* fopen64(const char* path, const char* mode) __attribute__((alias("fopen")));

ssize_t read(int fd, void* to, size_t size) {
  const Stream stream = stream_of(fd);
  if (!allowed(stream.read, stream.subject, size)) return -1;
  return ::syscall(SYS_read, fd, to, size);
}
ssize_t pread(int fd, void* to, size_t size, off_t at) {
  if (!allowed(kRead, stream_of(fd).subject, size)) return -1;
  return ::syscall(SYS_pread64, fd, to, size, at);
}
ssize_t pread64(int fd, void* to, size_t size, off64_t at) __attribute__((alias("pread")));
ssize_t readv(int fd, const iovec* parts, int count) {
  const Stream stream = stream_of(fd);
  return in_pieces(
      stream.read, stream.subject, parts, [&] { return ::syscall(SYS_readv, fd, parts, count); },
      read_part, fd);
}
ssize_t write(int fd, const void* from, size_t size) {
  const Stream stream = stream_of(fd);
  if (!allowed(stream.write, stream.subject, size)) return -1;
  return ::syscall(SYS_write, fd, from, size);
}
ssize_t pwrite(int fd, const void* from, size_t size, off_t at) {
  if (!allowed(kWrite, stream_of(fd).subject, size)) return -1;
  return ::syscall(SYS_pwrite64, fd, from, size, at);
}
ssize_t pwrite64(int fd, const void* from, size_t size, off64_t at)
    __attribute__((alias("pwrite")));
ssize_t writev(int fd, const iovec* parts, int count) {
  const Stream stream = stream_of(fd);
  return in_pieces(
      stream.write, stream.subject, parts, [&] { return ::syscall(SYS_writev, fd, parts, count); },
      write_part, fd);
}

int fsync(int fd) {
  if (fails(kSync, stream_of(fd).subject)) return -1;
  return static_cast<int>(::syscall(SYS_fsync, fd));
}
int fdatasync(int fd) {
  if (fails(kSync, stream_of(fd).subject)) return -1;
  return static_cast<int>(::syscall(SYS_fdatasync, fd));
}
int syncfs(int fd) {
  if (fails(kSync, stream_of(fd).subject)) return -1;
  return static_cast<int>(::syscall(SYS_syncfs, fd));
}
int ftruncate(int fd, off_t size) {
  if (fails(kTruncate, stream_of(fd).subject)) return -1;
  return static_cast<int>(::syscall(SYS_ftruncate, fd, size));
}
int ftruncate64(int fd, off64_t size) __attribute__((alias("ftruncate")));
int truncate(const char* path, off_t size) {
  if (fails(kTruncate, about(AT_FDCWD, path))) return -1;
  return static_cast<int>(::syscall(SYS_truncate, path, size));
}
int truncate64(const char* path, off64_t size) __attribute__((alias("truncate")));
int fallocate(int fd, int mode, off_t at, off_t size) {
  if (fails(kTruncate, stream_of(fd).subject)) return -1;
  return static_cast<int>(::syscall(SYS_fallocate, fd, mode, at, size));
}
int fallocate64(int fd, int mode, off64_t at, off64_t size) __attribute__((alias("fallocate")));
int flock(int fd, int how) {
  if (fails(kLock, stream_of(fd).subject)) return -1;
  return static_cast<int>(::syscall(SYS_flock, fd, how));
}

// ---- Names.

int rename(const char* from, const char* to) {
  if (fails(kRename, about(AT_FDCWD, to))) return -1;
  return static_cast<int>(::syscall(SYS_rename, from, to));
}
int renameat(int from_folder, const char* from, int to_folder, const char* to) {
  if (fails(kRename, about(to_folder, to))) return -1;
  return static_cast<int>(::syscall(SYS_renameat, from_folder, from, to_folder, to));
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  if (fails(kRename, about(to_folder, to))) return -1;
  return static_cast<int>(::syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
}
int link(const char* from, const char* to) {
  if (fails(kLink, about(AT_FDCWD, to))) return -1;
  return static_cast<int>(::syscall(SYS_link, from, to));
}
int symlink(const char* target, const char* to) {
  if (fails(kLink, about(AT_FDCWD, to))) return -1;
  return static_cast<int>(::syscall(SYS_symlink, target, to));
}
int unlink(const char* path) {
  if (fails(kUnlink, about(AT_FDCWD, path))) return -1;
  return static_cast<int>(::syscall(SYS_unlink, path));
}
int unlinkat(int folder, const char* path, int flags) {
  if (fails(kUnlink, about(folder, path))) return -1;
  return static_cast<int>(::syscall(SYS_unlinkat, folder, path, flags));
}
int rmdir(const char* path) {
  if (fails(kUnlink, about(AT_FDCWD, path))) return -1;
  return static_cast<int>(::syscall(SYS_rmdir, path));
}
int remove(const char* path) {
  if (fails(kUnlink, about(AT_FDCWD, path))) return -1;
  const long done = ::syscall(SYS_unlink, path);
  if (done == 0 || errno != EISDIR) return static_cast<int>(done);
  return static_cast<int>(::syscall(SYS_rmdir, path));
}
int mkdir(const char* path, mode_t mode) {
  if (fails(kMkdir, about(AT_FDCWD, path))) return -1;
  return static_cast<int>(::syscall(SYS_mkdir, path, mode));
}
int mkdirat(int folder, const char* path, mode_t mode) {
  if (fails(kMkdir, about(folder, path))) return -1;
  return static_cast<int>(::syscall(SYS_mkdirat, folder, path, mode));
}

// ---- What is there.

int stat(const char* path, struct stat* info) {
  if (fails(kStat, about(AT_FDCWD, path))) return -1;
  return static_cast<int>(::syscall(SYS_newfstatat, AT_FDCWD, path, info, 0));
}
int stat64(const char* path, struct stat64* info) {
  if (fails(kStat, about(AT_FDCWD, path))) return -1;
  return static_cast<int>(::syscall(SYS_newfstatat, AT_FDCWD, path, info, 0));
}
int lstat(const char* path, struct stat* info) {
  if (fails(kStat, about(AT_FDCWD, path))) return -1;
  return static_cast<int>(::syscall(SYS_newfstatat, AT_FDCWD, path, info, AT_SYMLINK_NOFOLLOW));
}
int fstat(int fd, struct stat* info) {
  if (fails(kStat, stream_of(fd).subject)) return -1;
  return static_cast<int>(::syscall(SYS_newfstatat, fd, "", info, AT_EMPTY_PATH));
}
int fstat64(int fd, struct stat64* info) {
  if (fails(kStat, stream_of(fd).subject)) return -1;
  return static_cast<int>(::syscall(SYS_newfstatat, fd, "", info, AT_EMPTY_PATH));
}
int fstatat(int folder, const char* path, struct stat* info, int flags) {
  if (fails(kStat, about(folder, path))) return -1;
  return static_cast<int>(::syscall(SYS_newfstatat, folder, path, info, flags));
}
int access(const char* path, int how) {
  if (fails(kStat, about(AT_FDCWD, path))) return -1;
  return static_cast<int>(::syscall(SYS_access, path, how));
}
int statvfs(const char* path, struct statvfs* info) {
  if (fails(kStat, about(AT_FDCWD, path))) return -1;
  static auto* const next = real(&statvfs, "statvfs");
  return next(path, info);
}
int statvfs64(const char* path, struct statvfs64* info) {
  if (fails(kStat, about(AT_FDCWD, path))) return -1;
  static auto* const next = real(&statvfs64, "statvfs64");
  return next(path, info);
}
DIR* opendir(const char* path) {
  if (fails(kList, about(AT_FDCWD, path))) return nullptr;
  static auto* const next = real(&opendir, "opendir");
  return next(path);
}
dirent* readdir(DIR* folder) {
  if (fails(kList, stream_of(::dirfd(folder)).subject)) return nullptr;
  static auto* const next = real(&readdir, "readdir");
  return next(folder);
}
dirent64* readdir64(DIR* folder) {
  if (fails(kList, stream_of(::dirfd(folder)).subject)) return nullptr;
  static auto* const next = real(&readdir64, "readdir64");
  return next(folder);
}

// Of files below the root, of memory files, and of large parts by the program's own code.
void* mmap(void* where, size_t size, int protection, int flags, int fd, off_t at) {
  Subject subject;
  if (board != nullptr && role != kNobody) {
    const auto caller = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
    if ((flags & MAP_ANONYMOUS) == 0) {
      subject.counts = path_of(fd, subject.text, sizeof subject.text) &&
                       (in_root(subject.text) || std::strncmp(subject.text, "/memfd:", 7) == 0);
    } else if (size >= (1 << 16) && caller >= program_begin && caller < program_end) {
      subject = of_process("memory");
    }
  }
  if (fails(kMmap, subject)) return MAP_FAILED;
  return reinterpret_cast<void*>(::syscall(SYS_mmap, where, size, protection, flags, fd, at));
}
void* mmap64(void* where, size_t size, int protection, int flags, int fd, off64_t at) {
  return mmap(where, size, protection, flags, fd, at);
}

// ---- Descriptors and processes.

int pipe2(int ends[2], int flags) {
  if (fails(kDescriptor, of_process("pipe"))) return -1;
  return static_cast<int>(::syscall(SYS_pipe2, ends, flags));
}
int pipe(int ends[2]) { return pipe2(ends, 0); }
int eventfd(unsigned value, int flags) {
  if (fails(kDescriptor, of_process("eventfd"))) return -1;
  return static_cast<int>(::syscall(SYS_eventfd2, value, flags));
}
int epoll_create1(int flags) {
  if (fails(kDescriptor, of_process("epoll"))) return -1;
  return static_cast<int>(::syscall(SYS_epoll_create1, flags));
}
int pidfd_open(pid_t pid, unsigned flags) {
  if (fails(kDescriptor, of_process("pidfd"))) return -1;
  return static_cast<int>(::syscall(SYS_pidfd_open, pid, flags));
}
int memfd_create(const char* name, unsigned flags) {
  if (fails(kDescriptor, of_process("memfd"))) return -1;
  return static_cast<int>(::syscall(SYS_memfd_create, name, flags));
}
int signalfd(int fd, const sigset_t* mask, int flags) {
  if (fails(kDescriptor, of_process("signalfd"))) return -1;
  return static_cast<int>(::syscall(SYS_signalfd4, fd, mask, 8, flags));
}
pid_t fork() {
  if (fails(kFork, of_process("process"))) return -1;
  static auto* const next = real(&fork, "fork");
  return next();
}
int posix_spawn(pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions,
                const posix_spawnattr_t* attributes, char* const argv[], char* const env[]) {
  if (const int error = strike(kFork, of_process(path)); error > 0) return error;
  static auto* const next = real(&posix_spawn, "posix_spawn");
  return next(pid, path, actions, attributes, argv, env);
}
int execve(const char* path, char* const argv[], char* const env[]) {
  if (fails(kExec, of_process(path))) return -1;
  return static_cast<int>(::syscall(SYS_execve, path, argv, env));
}

// ---- Sockets.

int socket(int domain, int type, int protocol) {
  if (fails(kSocket, of_process("socket"))) return -1;
  return static_cast<int>(::syscall(SYS_socket, domain, type, protocol));
}
int socketpair(int domain, int type, int protocol, int ends[2]) {
  if (fails(kSocket, of_process("pair of sockets"))) return -1;
  return static_cast<int>(::syscall(SYS_socketpair, domain, type, protocol, ends));
}
int bind(int fd, const sockaddr* address, socklen_t size) {
  if (fails(kBind, stream_of(fd).subject)) return -1;
  return static_cast<int>(::syscall(SYS_bind, fd, address, size));
}
int listen(int fd, int backlog) {
  if (fails(kListen, stream_of(fd).subject)) return -1;
  return static_cast<int>(::syscall(SYS_listen, fd, backlog));
}
int connect(int fd, const sockaddr* address, socklen_t size) {
  if (fails(kConnect, stream_of(fd).subject)) return -1;
  return static_cast<int>(::syscall(SYS_connect, fd, address, size));
}
int accept4(int fd, sockaddr* address, socklen_t* size, int flags) {
  if (fails(kAccept, stream_of(fd).subject)) return -1;
  return static_cast<int>(::syscall(SYS_accept4, fd, address, size, flags));
}
int accept(int fd, sockaddr* address, socklen_t* size) { return accept4(fd, address, size, 0); }
int epoll_ctl(int epoll, int what, int fd, epoll_event* event) {
  // To take something away needs nothing, and cannot fail.
  if (what != EPOLL_CTL_DEL && fails(kEpoll, of_process("epoll"))) return -1;
  return static_cast<int>(::syscall(SYS_epoll_ctl, epoll, what, fd, event));
}
ssize_t send(int fd, const void* from, size_t size, int flags) {
  if (!allowed(kSend, stream_of(fd).subject, size)) return -1;
  return ::syscall(SYS_sendto, fd, from, size, flags, nullptr, 0);
}
ssize_t recv(int fd, void* to, size_t size, int flags) {
  if (!allowed(kReceive, stream_of(fd).subject, size)) return -1;
  return ::syscall(SYS_recvfrom, fd, to, size, flags, nullptr, nullptr);
}
ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  return in_pieces(
      kSend, stream_of(fd).subject, message->msg_iov,
      [&] { return ::syscall(SYS_sendmsg, fd, message, flags); }, send_part, fd);
}
ssize_t recvmsg(int fd, msghdr* message, int flags) {
  const Stream stream = stream_of(fd);
  // Messages with descriptors are never short.
  const bool whole = message->msg_controllen > 0;
  return in_pieces(
      kReceive, stream.subject, whole ? nullptr : message->msg_iov,
      [&] { return ::syscall(SYS_recvmsg, fd, message, flags); }, read_part, fd);
}
int poll(pollfd* watched, nfds_t count, int timeout) {
  if (fails(kPoll, of_process("poll"))) return -1;
  static auto* const next = real(&poll, "poll");
  return next(watched, count, timeout);
}

}  // extern "C"
