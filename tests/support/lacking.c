/*
 * Preloaded into a node: calls that a file system, or a system, does not know.
 *
 * LACKING is a list of names, each behind a comma; the calls below of those names fail with
 * EOPNOTSUPP, mmap with ENODEV and flock with ENOLCK, mmap for files below LACKING_FOLDER only.
 * With LACKING_SINCE they do not fail before there is a file of that name.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define REAL(name) static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static int lacks(const char *name)
{
    const char *names = getenv("LACKING"), *since = getenv("LACKING_SINCE");
    char wanted[64];
    if (since && access(since, F_OK)) return 0;
    snprintf(wanted, sizeof wanted, ",%s,", name);
    return names && strstr(names, wanted) != NULL;
}

static int is_below(int fd)
{
    char link[64], path[4096];
    const char *folder = getenv("LACKING_FOLDER");
    ssize_t size;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    size = readlink(link, path, sizeof path - 1);
    if (size < 0 || !folder) return 0;
    path[size] = 0;
    return !strncmp(path, folder, strlen(folder));
}

static int fail(int number)
{
    errno = number;
    return -1;
}

int flock(int fd, int how)
{
    REAL(flock);
    return lacks("flock") ? fail(ENOLCK) : real(fd, how);
}

int fdatasync(int fd)
{
    REAL(fdatasync);
    return lacks("fdatasync") ? fail(EOPNOTSUPP) : real(fd);
}

int fsync(int fd)
{
    REAL(fsync);
    struct stat info;
    if (lacks("fsync") && !fstat(fd, &info) && S_ISDIR(info.st_mode)) return fail(EOPNOTSUPP);
    return real(fd);
}

int posix_fallocate64(int fd, off64_t offset, off64_t size)
{
    REAL(posix_fallocate64);
    return lacks("posix_fallocate") ? EOPNOTSUPP : real(fd, offset, size);
}

int posix_fallocate(int fd, off_t offset, off_t size)
{
    REAL(posix_fallocate);
    return lacks("posix_fallocate") ? EOPNOTSUPP : real(fd, offset, size);
}

ssize_t pwritev64v2(int fd, const struct iovec *from, int count, off64_t offset, int flags);
ssize_t pwritev64v2(int fd, const struct iovec *from, int count, off64_t offset, int flags)
{
    REAL(pwritev64v2);
    return flags && lacks("pwritev2") ? fail(EOPNOTSUPP) : real(fd, from, count, offset, flags);
}

void *mmap(void *at, size_t size, int rights, int flags, int fd, off_t offset)
{
    REAL(mmap);
    if (fd >= 0 && lacks("mmap") && is_below(fd)) {
        errno = ENODEV;
        return MAP_FAILED;
    }
    return real(at, size, rights, flags, fd, offset);
}

void *mmap64(void *at, size_t size, int rights, int flags, int fd, off64_t offset)
{
    return mmap(at, size, rights, flags, fd, offset);
}
