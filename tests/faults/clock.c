/*
 * Preloaded into a node: the time of day is off by what the first eight bytes of the file
 * FAULTS_CLOCK say, in nanoseconds. The file is mapped, so a change steps the clock of a process that
 * runs, and what it says holds for the next process as well: a board that starts before NTP.
 *
 * All of the process is shifted: Python, gRPC's core, libc. The monotonic clock goes on as it was. A
 * moment of the time of day that somebody waits for is shifted back for the kernel, which knows of
 * nothing.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define EPOCH 1000000000LL /* seconds; a moment below it is one of the monotonic clock */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static volatile int64_t none;
static volatile int64_t *offset = &none;

#define REAL(name) static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static long ask_kernel(long number, long a, long b, long c, long d, long e, long f)
{
    REAL(syscall);
    return real(number, a, b, c, d, e, f);
}

static void start(void)
{
    const char *path = getenv("FAULTS_CLOCK");
    int fd;
    void *found;
    if (!path) return;
    fd = (int)ask_kernel(SYS_openat, AT_FDCWD, (long)path, O_RDONLY | O_CLOEXEC, 0, 0, 0);
    if (fd < 0) _exit(99);
    found = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0);
    if (found == MAP_FAILED) _exit(99);
    ask_kernel(SYS_close, fd, 0, 0, 0, 0, 0);
    offset = found;
}

static void shift(struct timespec *time, int64_t by)
{
    int64_t total = time->tv_sec * SECOND + time->tv_nsec + by;
    if (total < 0) total = 0;
    time->tv_sec = total / SECOND;
    time->tv_nsec = total % SECOND;
}

static int is_of_day(clockid_t clock)
{
    return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI;
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
    REAL(clock_gettime);
    int result = real(clock, time);
    pthread_once(&once, start);
    if (!result && is_of_day(clock)) shift(time, *offset);
    return result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *place)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (place) *place = now.tv_sec;
    return now.tv_sec;
}

int timespec_get(struct timespec *time, int base)
{
    if (base != TIME_UTC) return 0;
    clock_gettime(CLOCK_REALTIME, time);
    return base;
}

/* A moment to wait for, as the kernel knows it. */
static struct timespec moment(const struct timespec *until)
{
    struct timespec real = *until;
    pthread_once(&once, start);
    if (real.tv_sec > EPOCH) shift(&real, -*offset);
    return real;
}

int pthread_cond_timedwait(
    pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex, const struct timespec *restrict until)
{
    static __typeof__(&pthread_cond_timedwait) real;
    struct timespec at = moment(until);
    if (!real) real = (__typeof__(real))dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!real) real = (__typeof__(real))dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    return real(condition, mutex, &at);
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex, const struct timespec *restrict until)
{
    REAL(pthread_mutex_timedlock);
    struct timespec at = moment(until);
    return real(mutex, &at);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until)
{
    REAL(sem_timedwait);
    struct timespec at = moment(until);
    return real(semaphore, &at);
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *wanted, struct timespec *left)
{
    REAL(clock_nanosleep);
    struct timespec at = *wanted;
    if (flags & TIMER_ABSTIME && is_of_day(clock)) at = moment(wanted);
    return real(clock, flags, &at, left);
}

/* Abseil, in gRPC, waits by the system call. */
long syscall(long number, ...)
{
    long a, b, c, d, e, f;
    struct timespec at;
    va_list rest;
    va_start(rest, number);
    a = va_arg(rest, long);
    b = va_arg(rest, long);
    c = va_arg(rest, long);
    d = va_arg(rest, long);
    e = va_arg(rest, long);
    f = va_arg(rest, long);
    va_end(rest);
    if (number == SYS_futex && (int)b & FUTEX_CLOCK_REALTIME && d) {
        at = moment((const struct timespec *)d);
        d = (long)&at;
    }
    return ask_kernel(number, a, b, c, d, e, f);
}
