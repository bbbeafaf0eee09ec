/* A disk that fails on demand: loaded before the C library, it lets writes and syncs of a database fail while a control
 * file says so. Its first letter is the fault: f, the disk is full; w, writes fail; s, syncs fail. Files other than the
 * database's are left alone, and so is everything while the control file is empty or missing. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A write longer than this is cut to it before the next one fails, so that torn pages lie on the disk. */
#define PIECE 512

static char fault_of(int fd)
{
    char link[64], path[512], fault = 0;
    const char *control = getenv("RINGCAST_DISK_FAULT");
    ssize_t length;
    int file;

    if (control == NULL)
        return 0;
    file = (int)syscall(SYS_openat, AT_FDCWD, control, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    if (syscall(SYS_read, file, &fault, 1) != 1)
        fault = 0;
    syscall(SYS_close, file);
    if (fault == 0)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, path, sizeof path - 1);
    if (length <= 0)
        return 0;
    path[length] = 0;
    return strstr(path, "ringcast.db") != NULL ? fault : 0;
}

static int refused(int fd, size_t bytes)
{
    char fault = fault_of(fd);

    if ((fault == 'f' || fault == 'w') && bytes <= PIECE) {
        errno = fault == 'f' ? ENOSPC : EIO;
        return -1;
    }
    return fault == 'f' || fault == 'w';
}

ssize_t pwrite64(int fd, const void *buffer, size_t bytes, off_t offset)
{
    int verdict = refused(fd, bytes);

    if (verdict < 0)
        return -1;
    return syscall(SYS_pwrite64, fd, buffer, verdict ? (size_t)PIECE : bytes, offset);
}

ssize_t pwrite(int fd, const void *buffer, size_t bytes, off_t offset)
{
    return pwrite64(fd, buffer, bytes, offset);
}

ssize_t write(int fd, const void *buffer, size_t bytes)
{
    int verdict = refused(fd, bytes);

    if (verdict < 0)
        return -1;
    return syscall(SYS_write, fd, buffer, verdict ? (size_t)PIECE : bytes);
}

static int sync_of(int fd, long number)
{
    if (fault_of(fd) == 's') {
        errno = EIO;
        return -1;
    }
    return (int)syscall(number, fd);
}

int fsync(int fd)
{
    return sync_of(fd, SYS_fsync);
}

int fdatasync(int fd)
{
    return sync_of(fd, SYS_fdatasync);
}

int posix_fallocate(int fd, off_t offset, off_t length)
{
    char fault = fault_of(fd);

    if (fault == 'f')
        return ENOSPC;
    if (fault == 'w')
        return EIO;
    return syscall(SYS_fallocate, fd, 0, offset, length) == 0 ? 0 : errno;
}
