/* A process whose memory is what a file says: loaded before the C library, it opens the file that RINGCAST_MEMORY names
 * in the place of /proc/self/statm. So a test decides how much the process uses, and no allocator does. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int open_as(const char *path, int flags, mode_t mode)
{
    const char *instead = getenv("RINGCAST_MEMORY");

    if (instead != NULL && strcmp(path, "/proc/self/statm") == 0)
        path = instead;
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    va_list more;
    mode_t mode = 0;

    va_start(more, flags);
    if ((flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE)
        mode = va_arg(more, mode_t);
    va_end(more);
    return open_as(path, flags, mode);
}

int open(const char *path, int flags, ...)
{
    va_list more;
    mode_t mode = 0;

    va_start(more, flags);
    if ((flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE)
        mode = va_arg(more, mode_t);
    va_end(more);
    return open_as(path, flags, mode);
}
