/*
 * A node of a cluster, loaded before the C library (LD_PRELOAD):
 *
 * NODE_BOOT_ID=<file>     the file that is read for the boot id
 * NODE_LOCKS=<errno>      locks fail with this error; with 0 they succeed, but no other process sees them, as on file
 *                         systems that keep locks local to a node
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>

int flock(int file, int operation) {
    const char *locks = getenv("NODE_LOCKS");
    (void)file;
    (void)operation;
    errno = locks ? atoi(locks) : 0;
    return errno ? -1 : 0;
}

static const char *found(const char *path) {
    const char *own = getenv("NODE_BOOT_ID");
    return own && !strcmp(path, "/proc/sys/kernel/random/boot_id") ? own : path;
}

#define OPEN(name)                                                                        \
    int name(const char *path, int flags, ...) {                                          \
        int (*own)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name); \
        va_list rest;                                                                     \
        va_start(rest, flags);                                                            \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;           \
        va_end(rest);                                                                     \
        return own(found(path), flags, mode);                                             \
    }

OPEN(open)
OPEN(open64)
