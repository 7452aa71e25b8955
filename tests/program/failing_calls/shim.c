/*
 * Wrappers of system calls that fail on request: loaded before the C library (LD_PRELOAD), whose functions they override.
 * Calls are counted by kind in each process, over all its threads.
 *
 * FAILING_CALLS="<process> <kind> <first> <last> <errno>"
 *     the calls that fail (numbered from 1) in processes with this first argument, and their errno. With errno 0, a write
 *     writes only the first half of the data.
 * FAILING_CALLS_LOG=<file>
 *     receives a line for every failed call, "failed <process> <kind> <number> <subject>", and at the end of every process
 *     the counts of its calls, "counted <process> <kind> <number>".
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum kind { OPEN, READ, WRITE, SYNC, RENAME, MKDIR, REMOVE, LOCK, STAT, LIST, RESOLVE, SEEK, PIPE, MAP, THREAD, SPAWN, WAIT, KINDS };

static const char *const NAMES[KINDS] = {
    "open", "read", "write", "sync", "rename", "mkdir", "remove", "lock", "stat",
    "list", "resolve", "seek", "pipe", "map", "thread", "spawn", "wait",
};

static char process[64];
static long counts[KINDS];
static int wanted = KINDS;
static long first, last;
static int error;

/* Writes to the log with raw system calls, which bypass the wrappers below. */
static void tell(const char *line, int length) {
    const char *file = getenv("FAILING_CALLS_LOG");
    if (!file) return;
    int log = (int)syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (log < 0) return;
    syscall(SYS_write, log, line, (size_t)length);
    syscall(SYS_close, log);
}

__attribute__((constructor)) static void begin(int argc, char **argv) {
    snprintf(process, sizeof process, "%s", argc > 1 ? argv[1] : "none");
    const char *text = getenv("FAILING_CALLS");
    char of[64], kind[16];
    if (!text || sscanf(text, "%63s %15s %ld %ld %d", of, kind, &first, &last, &error) != 5) return;
    if (strcmp(of, process) != 0) return;
    for (int i = 0; i < KINDS; i++)
        if (strcmp(kind, NAMES[i]) == 0) wanted = i;
}

__attribute__((destructor)) static void end(void) {
    char lines[KINDS * 128];
    int length = 0;
    for (int i = 0; i < KINDS; i++)
        length += snprintf(lines + length, sizeof lines - (size_t)length, "counted %s %s %ld\n", process, NAMES[i], counts[i]);
    tell(lines, length);
}

/* Counts a call. Returns whether it fails, with `errno` set. */
static int fails(enum kind kind, const char *what) {
    long number = __atomic_add_fetch(&counts[kind], 1, __ATOMIC_RELAXED);
    if ((int)kind != wanted || number < first || number > last) return 0;
    char line[4096];
    tell(line, snprintf(line, sizeof line, "failed %s %s %ld %s\n", process, NAMES[kind], number, what));
    errno = error;
    return 1;
}

static int fails_of(enum kind kind, int descriptor) {
    char link[64], what[2048] = "?";
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    long length = syscall(SYS_readlinkat, AT_FDCWD, link, what, sizeof what - 1);
    if (length > 0) what[length] = 0;
    return fails(kind, what);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static mode_t mode_of(int flags, va_list rest) {
    return flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
}

int open64(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = mode_of(flags, rest);
    va_end(rest);
    return fails(OPEN, path) ? -1 : REAL(open64)(path, flags, mode);
}

int openat64(int folder, const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = mode_of(flags, rest);
    va_end(rest);
    return fails(OPEN, path) ? -1 : REAL(openat64)(folder, path, flags, mode);
}

DIR *opendir(const char *path) { return fails(OPEN, path) ? NULL : REAL(opendir)(path); }

DIR *fdopendir(int folder) { return fails_of(LIST, folder) ? NULL : REAL(fdopendir)(folder); }

struct dirent64 *readdir64(DIR *folder) { return fails_of(LIST, dirfd(folder)) ? NULL : REAL(readdir64)(folder); }

ssize_t read(int file, void *to, size_t bytes) { return fails_of(READ, file) ? -1 : REAL(read)(file, to, bytes); }

ssize_t write(int file, const void *from, size_t bytes) {
    if (!fails_of(WRITE, file)) return REAL(write)(file, from, bytes);
    return error == 0 ? REAL(write)(file, from, (bytes + 1) / 2) : -1;
}

ssize_t writev(int file, const struct iovec *from, int parts) {
    if (!fails_of(WRITE, file)) return REAL(writev)(file, from, parts);
    return error == 0 ? REAL(write)(file, from[0].iov_base, (from[0].iov_len + 1) / 2) : -1;
}

int fsync(int file) { return fails_of(SYNC, file) ? -1 : REAL(fsync)(file); }

int fdatasync(int file) { return fails_of(SYNC, file) ? -1 : REAL(fdatasync)(file); }

int rename(const char *from, const char *to) { return fails(RENAME, to) ? -1 : REAL(rename)(from, to); }

int mkdir(const char *path, mode_t mode) { return fails(MKDIR, path) ? -1 : REAL(mkdir)(path, mode); }

int unlink(const char *path) { return fails(REMOVE, path) ? -1 : REAL(unlink)(path); }

int unlinkat(int folder, const char *path, int flags) {
    return fails(REMOVE, path) ? -1 : REAL(unlinkat)(folder, path, flags);
}

int rmdir(const char *path) { return fails(REMOVE, path) ? -1 : REAL(rmdir)(path); }

/* Unlocking never fails: a lock ends when its file is closed. */
int flock(int file, int what) {
    if (!(what & LOCK_UN) && fails_of(LOCK, file)) return -1;
    return REAL(flock)(file, what);
}

int statx(int folder, const char *restrict path, int flags, unsigned mask, struct statx *restrict to) {
    /* A null path (declared nonnull) only probes whether the call exists. */
    const char *asked = path;
    __asm__("" : "+r"(asked));
    if (!asked) return REAL(statx)(folder, path, flags, mask, to);
    int failed = path[0] ? fails(STAT, path) : fails_of(STAT, folder);
    return failed ? -1 : REAL(statx)(folder, path, flags, mask, to);
}

int stat64(const char *restrict path, struct stat64 *restrict to) {
    return fails(STAT, path) ? -1 : REAL(stat64)(path, to);
}

int lstat64(const char *restrict path, struct stat64 *restrict to) {
    return fails(STAT, path) ? -1 : REAL(lstat64)(path, to);
}

int fstat64(int file, struct stat64 *to) { return fails_of(STAT, file) ? -1 : REAL(fstat64)(file, to); }

int fstatat64(int folder, const char *restrict path, struct stat64 *restrict to, int flags) {
    return fails(STAT, path) ? -1 : REAL(fstatat64)(folder, path, to, flags);
}

char *realpath(const char *restrict path, char *restrict to) {
    return fails(RESOLVE, path) ? NULL : REAL(realpath)(path, to);
}

ssize_t readlink(const char *restrict path, char *restrict to, size_t bytes) {
    return fails(RESOLVE, path) ? -1 : REAL(readlink)(path, to, bytes);
}

char *getcwd(char *to, size_t bytes) { return fails(RESOLVE, ".") ? NULL : REAL(getcwd)(to, bytes); }

off64_t lseek64(int file, off64_t offset, int from) {
    return fails_of(SEEK, file) ? -1 : REAL(lseek64)(file, offset, from);
}

int pipe2(int ends[2], int flags) { return fails(PIPE, "pipe") ? -1 : REAL(pipe2)(ends, flags); }

/* The third argument fits one word for all commands. */
int fcntl(int file, int command, ...) {
    va_list rest;
    va_start(rest, command);
    long argument = va_arg(rest, long);
    va_end(rest);
    if (command == F_DUPFD_CLOEXEC && fails_of(PIPE, file)) return -1;
    return REAL(fcntl)(file, command, argument);
}

/* Only mappings with MAP_POPULATE: the Rust runtime makes other mappings of its own. */
void *mmap64(void *at, size_t bytes, int protection, int flags, int file, off64_t offset) {
    if (flags & MAP_POPULATE && fails(MAP, "memory")) return MAP_FAILED;
    return REAL(mmap64)(at, bytes, protection, flags, file, offset);
}

int pthread_create(pthread_t *restrict to, const pthread_attr_t *restrict how, void *(*what)(void *), void *restrict with) {
    return fails(THREAD, "thread") ? error : REAL(pthread_create)(to, how, what, with);
}

int posix_spawnp(pid_t *restrict to, const char *restrict program, const posix_spawn_file_actions_t *actions,
                 const posix_spawnattr_t *restrict how, char *const arguments[restrict], char *const environment[restrict]) {
    if (fails(SPAWN, program)) return error;
    return REAL(posix_spawnp)(to, program, actions, how, arguments, environment);
}

pid_t waitpid(pid_t child, int *status, int options) {
    return fails(WAIT, "child") ? -1 : REAL(waitpid)(child, status, options);
}
