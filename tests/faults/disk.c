/*
 * Preloaded into a node: notes how to undo each write below a folder until it is synced, so that a
 * power cut can be played after a kill -9 (which by itself loses nothing that was written), and
 * makes syncs slow on demand. It changes nothing that the node does or sees.
 *
 * FAULTS_DATA     the folder whose files are watched
 * FAULTS_CONTROL  a folder outside of it:
 *     undo        records are appended here, before the write that they undo; the format is below
 *     delay       microseconds that each fdatasync and fsync takes longer, as text; may be absent
 *
 * Not seen: writes through mmap, and file systems' own promises (a rename and the removal of a file
 * count as durable at once; a new file is durable once it or its folder has been synced).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* One record: this, then `size` bytes that stood there before, or none if all of them were 0. */
struct record {
    uint8_t kind;     /* 'W' write, 'C' file created, 'S' file synced, 'D' folder synced */
    uint8_t is_zero;  /* W: the bytes were 0 and do not follow */
    uint8_t unused[6];
    uint64_t inode;
    uint64_t offset;  /* W: of the bytes; S, D: records before this place of the log are durable */
    uint64_t length;  /* W: of the file before; C: inode of its folder */
    uint64_t size;    /* W: how many bytes */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static char data[4096];
static char delay_file[4096];
static int undo = -1;

#define REAL(name) static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static void start(void)
{
    const char *folder = getenv("FAULTS_DATA"), *control = getenv("FAULTS_CONTROL");
    char path[4096];
    if (!folder || !control) return;
    snprintf(data, sizeof data, "%s/", folder);
    snprintf(delay_file, sizeof delay_file, "%s/delay", control);
    snprintf(path, sizeof path, "%s/undo", control);
    undo = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
}

static int is_watched(int fd, struct stat *info)
{
    char link[64], path[4096];
    int error = errno;
    ssize_t length;
    pthread_once(&once, start);
    if (undo < 0 || fd == undo || fstat(fd, info) || !(S_ISREG(info->st_mode) || S_ISDIR(info->st_mode))) {
        errno = error;
        return 0;
    }
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, path, sizeof path - 2);
    errno = error;
    if (length < 0) return 0;
    path[length] = '/';
    path[length + 1] = 0;
    return !strncmp(path, data, strlen(data));
}

/* The log lies on a disk with room; if it does not, the test is void, and says so. */
static void note(const struct record *record, const void *bytes)
{
    struct iovec parts[2] = {{(void *)record, sizeof *record}, {(void *)bytes, bytes ? record->size : 0}};
    ssize_t wanted = (ssize_t)(parts[0].iov_len + parts[1].iov_len);
    if (syscall(SYS_writev, undo, parts, 2) != wanted) {
        static const char text[] = "disk.c: the undo log cannot be written\n";
        syscall(SYS_write, 2, text, sizeof text - 1);
        _exit(99);
    }
}

/* Called with the lock held, before `size` bytes are written at `offset`. */
static void before_write(int fd, const struct stat *info, off_t offset, size_t size)
{
    struct record record = {.kind = 'W', .inode = info->st_ino, .offset = (uint64_t)offset,
                            .length = (uint64_t)info->st_size};
    char *bytes = NULL;
    int error = errno;
    if (offset < info->st_size) {
        off_t left = info->st_size - offset;
        record.size = (size_t)left < size ? (size_t)left : size;
        bytes = malloc(record.size);
        if (!bytes) abort();
        ssize_t got = syscall(SYS_pread64, fd, bytes, record.size, offset);
        if (got < 0) {  /* write-only: ask the file anew */
            char link[64];
            snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
            int again = (int)syscall(SYS_openat, AT_FDCWD, link, O_RDONLY | O_CLOEXEC, 0);
            got = syscall(SYS_pread64, again, bytes, record.size, offset);
            syscall(SYS_close, again);
        }
        if (got < 0) abort();
        record.size = (size_t)got;
        record.is_zero = 1;
        for (size_t i = 0; i < record.size; i++)
            if (bytes[i]) { record.is_zero = 0; break; }
    }
    note(&record, record.is_zero ? NULL : bytes);
    free(bytes);
    errno = error;
}

static size_t total(const struct iovec *parts, int count)
{
    size_t size = 0;
    for (int i = 0; i < count; i++) size += parts[i].iov_len;
    return size;
}

/* Where a plain write goes. */
static off_t place(int fd, const struct stat *info)
{
    int flags = fcntl(fd, F_GETFL);
    return flags & O_APPEND ? info->st_size : lseek(fd, 0, SEEK_CUR);
}

#define WRITES(call, where, size) \
    struct stat info; \
    if (!is_watched(fd, &info)) return call; \
    pthread_mutex_lock(&lock); \
    fstat(fd, &info); \
    before_write(fd, &info, where, size); \
    ssize_t done = call; \
    pthread_mutex_unlock(&lock); \
    return done

ssize_t write(int fd, const void *bytes, size_t size)
{ REAL(write); WRITES(real(fd, bytes, size), place(fd, &info), size); }

ssize_t writev(int fd, const struct iovec *parts, int count)
{ REAL(writev); WRITES(real(fd, parts, count), place(fd, &info), total(parts, count)); }

ssize_t pwrite(int fd, const void *bytes, size_t size, off_t offset)
{ REAL(pwrite); WRITES(real(fd, bytes, size, offset), offset, size); }

ssize_t pwrite64(int fd, const void *bytes, size_t size, off64_t offset)
{ REAL(pwrite64); WRITES(real(fd, bytes, size, offset), offset, size); }

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset)
{ REAL(pwritev); WRITES(real(fd, parts, count, offset), offset, total(parts, count)); }

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset)
{ REAL(pwritev64); WRITES(real(fd, parts, count, offset), offset, total(parts, count)); }

ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t offset, int flags)
{ REAL(pwritev2); WRITES(real(fd, parts, count, offset, flags), offset, total(parts, count)); }

ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t offset, int flags)
{ REAL(pwritev64v2); WRITES(real(fd, parts, count, offset, flags), offset, total(parts, count)); }

/* A shorter file loses its end, a longer one grows by zeros. */
#define RESIZES(call, length) \
    struct stat info; \
    if (!is_watched(fd, &info)) return call; \
    pthread_mutex_lock(&lock); \
    fstat(fd, &info); \
    before_write(fd, &info, length, length < info.st_size ? (size_t)(info.st_size - length) : 0); \
    int done = call; \
    pthread_mutex_unlock(&lock); \
    return done

int ftruncate(int fd, off_t length)
{ REAL(ftruncate); RESIZES(real(fd, length), length); }

int ftruncate64(int fd, off64_t length)
{ REAL(ftruncate64); RESIZES(real(fd, length), length); }

int posix_fallocate(int fd, off_t offset, off_t size)
{ REAL(posix_fallocate); RESIZES(real(fd, offset, size), info.st_size); }

int posix_fallocate64(int fd, off64_t offset, off64_t size)
{ REAL(posix_fallocate64); RESIZES(real(fd, offset, size), info.st_size); }

int fallocate(int fd, int mode, off_t offset, off_t size)
{ REAL(fallocate); RESIZES(real(fd, mode, offset, size), info.st_size); }

int fallocate64(int fd, int mode, off64_t offset, off64_t size)
{ REAL(fallocate64); RESIZES(real(fd, mode, offset, size), info.st_size); }

static void wait_for_disk(void)
{
    char text[32] = "";
    int fd = (int)syscall(SYS_openat, AT_FDCWD, delay_file, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) return;
    if (syscall(SYS_read, fd, text, sizeof text - 1) > 0) usleep((useconds_t)atol(text));
    syscall(SYS_close, fd);
}

/* What was written before the sync began is durable when it has succeeded. */
#define SYNCS(call) \
    struct stat info; \
    if (!is_watched(fd, &info)) return call; \
    pthread_mutex_lock(&lock); \
    off_t end = lseek(undo, 0, SEEK_END); \
    pthread_mutex_unlock(&lock); \
    int before = errno; \
    wait_for_disk(); \
    errno = before; \
    int done = call; \
    if (!done) { \
        struct record record = {.kind = S_ISDIR(info.st_mode) ? 'D' : 'S', .inode = info.st_ino, \
                                .offset = (uint64_t)end}; \
        pthread_mutex_lock(&lock); \
        note(&record, NULL); \
        pthread_mutex_unlock(&lock); \
    } \
    return done

int fdatasync(int fd)
{ REAL(fdatasync); SYNCS(real(fd)); }

int fsync(int fd)
{ REAL(fsync); SYNCS(real(fd)); }

/* Before an open: whether the file is there; what O_TRUNC takes away from it is noted. */
static int was_there(int folder, const char *path, int flags)
{
    struct stat info;
    int error = errno;
    int fd = (int)syscall(SYS_openat, folder, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0) {
        if (flags & O_TRUNC && is_watched(fd, &info) && info.st_size) {
            pthread_mutex_lock(&lock);
            before_write(fd, &info, 0, (size_t)info.st_size);
            pthread_mutex_unlock(&lock);
        }
        syscall(SYS_close, fd);
    }
    errno = error;
    return fd >= 0;
}

/* After it: a new file is gone with the power unless it or its folder has been synced. */
static int opened(int fd, int is_old)
{
    struct stat info, folder;
    char link[64], path[4096];
    int error = errno;
    if (fd < 0 || is_old || !is_watched(fd, &info) || !S_ISREG(info.st_mode)) return fd;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) abort();
    path[length] = 0;
    *strrchr(path, '/') = 0;
    if (stat(path, &folder)) abort();
    struct record record = {.kind = 'C', .inode = info.st_ino, .length = folder.st_ino};
    pthread_mutex_lock(&lock);
    note(&record, NULL);
    pthread_mutex_unlock(&lock);
    errno = error;
    return fd;
}

#define OPENS(folder, call) \
    va_list rest; \
    va_start(rest, flags); \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
    va_end(rest); \
    if (!(flags & (O_CREAT | O_TRUNC))) return call; \
    int is_old = was_there(folder, path, flags); \
    return opened(call, is_old)

int open(const char *path, int flags, ...)
{ REAL(open); OPENS(AT_FDCWD, real(path, flags, mode)); }

int open64(const char *path, int flags, ...)
{ REAL(open64); OPENS(AT_FDCWD, real(path, flags, mode)); }

int openat(int folder, const char *path, int flags, ...)
{ REAL(openat); OPENS(folder, real(folder, path, flags, mode)); }

int openat64(int folder, const char *path, int flags, ...)
{ REAL(openat64); OPENS(folder, real(folder, path, flags, mode)); }
